"""The derivative of a loss, as nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sample_graphs import floats, ints, line, mlp, node, normalized_mlp, scalar, tensor, weight
from weft_graph.differentiation import Differentiated, differentiate
from weft_graph.errors import DTypeError, GraphError, GraphRefusedError, NoGradientError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Graph, Node
from weft_graph.program import LOSS_SCALE
from weft_graph.topological import topological_order
from weft_graph.types import DType
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_nodes


def run(derived: Differentiated, values: Mapping[str, Array], *wanted: str) -> list[Array]:
    """Values of the derived graph, computed by the kernels in the order that it has."""
    table = {name: np.asarray(array) for name, array in values.items()}
    table.update((constant.name, constant.array) for constant in derived.graph.constants)
    run_nodes(KernelContext(node="", seed=1), derived.graph.nodes, table, keep=wanted)
    return [np.array(table[name]) for name in wanted]


def mlp_values(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    values = {p.name: rng.normal(size=p.type.static_shape) for p in mlp(DType.FLOAT64).parameters}
    return {**values, "x": rng.normal(size=(7, 4)), "label": rng.integers(0, 3, 7), LOSS_SCALE: np.array(1.0)}


def test_gradients_of_an_mlp_are_those_of_central_differences() -> None:
    """In float64 with a step of 1e-6, whose error is of the order of 1e-9."""
    derived, values = differentiate(mlp(DType.FLOAT64), "loss"), mlp_values(0)
    for name, gradient in zip(derived.gradients, run(derived, values, *derived.gradients.values()), strict=True):
        expected = np.zeros_like(values[name])
        for index in np.ndindex(expected.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = values[name].copy()
                moved[index] += step
                sides.append(float(run(derived, {**values, name: moved}, "loss")[0]))
            expected[index] = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8, err_msg=name)


def test_gradients_of_an_mlp_are_those_of_jax() -> None:
    def loss(p: dict[str, jax.Array], x: jax.Array, label: jax.Array) -> jax.Array:
        scores = jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(x.shape[0]), label])

    values = {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in mlp_values(1).items()}
    derived = differentiate(mlp(), "loss")
    expected = jax.grad(loss)({n: jnp.asarray(values[n]) for n in derived.gradients}, values["x"], values["label"])
    for name, gradient in zip(derived.gradients, run(derived, values, *derived.gradients.values()), strict=True):
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_parts_of_a_batch_scaled_by_their_share_sum_to_the_gradient_of_the_whole() -> None:
    derived, values = differentiate(mlp(DType.FLOAT64), "loss"), mlp_values(2)
    whole = run(derived, values, *derived.gradients.values())
    summed = [np.zeros_like(gradient) for gradient in whole]
    for part in (slice(0, 2), slice(2, 7)):
        share = np.array((part.stop - part.start) / 7)
        cut = {**values, "x": values["x"][part], "label": values["label"][part], LOSS_SCALE: share}
        gradients = run(derived, cut, *derived.gradients.values())
        summed = [total + gradient for total, gradient in zip(summed, gradients, strict=True)]
    for total, gradient in zip(summed, whole, strict=True):
        np.testing.assert_allclose(total, gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("graph", [mlp(), normalized_mlp()], ids=lambda graph: graph.name)
def test_a_gradient_has_its_parameters_type_and_nodes_are_in_order(graph: Graph) -> None:
    derived = differentiate(graph, "loss")
    trainable = {p.name: p.type for p in graph.parameters if p.trainable}
    assert {name: derived.types[value] for name, value in derived.gradients.items()} == trainable
    assert topological_order(derived.graph.nodes) == derived.graph.nodes
    assert dict(infer(derived.graph)) == dict(derived.types)


def mean(value: str) -> Node:
    return node("ReduceMean", [value], ["loss"], keepdims=0)


def test_several_uses_of_a_value_are_summed() -> None:
    """d/dw mean(w*w*x + w) = (2wx + 1) / n: three uses of one parameter."""
    nodes = [
        node("Mul", ["w", "w"], ["ww"]),
        node("Mul", ["ww", "x"], ["wwx"]),
        node("Add", ["wwx", "w"], ["y"]),
        mean("y"),
    ]
    graph = line(nodes, [weight("w", 3)], inputs={"x": floats(3)})
    derived = differentiate(graph, "loss")
    adds = [n for n in derived.graph.nodes if n.op_type == "Add" and n.name.startswith("weft.grad/w/")]
    assert len(adds) == 2
    w, x = np.array([1, -2, 3], np.float32), np.array([0.5, 4, -1], np.float32)
    (gradient,) = run(derived, {"w": w, "x": x, LOSS_SCALE: np.float32(1)}, derived.gradients["w"])
    np.testing.assert_allclose(gradient, (2 * w * x + 1) / 3, rtol=1e-6)


def test_a_gradient_starts_from_the_loss_scale() -> None:
    graph = line([mean("w")], [weight("w", 2)])
    derived = differentiate(graph, "loss")
    assert derived.graph.inputs[-1].name == LOSS_SCALE
    assert derived.graph.inputs[-1].type == derived.types["loss"] == floats()
    (gradient,) = run(derived, {"w": np.zeros(2, np.float32), LOSS_SCALE: np.float32(0.25)}, derived.gradients["w"])
    assert gradient.tolist() == [0.125, 0.125]


def test_a_loss_that_is_a_parameter_has_the_loss_scale_for_gradient() -> None:
    graph = line([node("Identity", ["x"], ["y"])], [weight("w")], outputs=["w"])
    assert dict(differentiate(graph, "w").gradients) == {"w": LOSS_SCALE}


def test_only_paths_that_lead_to_trainable_parameters_get_nodes() -> None:
    nodes = [
        node("MatMul", ["x", "frozen"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("MatMul", ["b", "w"], ["c"]),
        mean("c"),
    ]
    frozen = weight("frozen", 4, 3, trainable=False)
    derived = differentiate(line(nodes, [frozen, weight("w", 3, 2)]), "loss")
    assert list(derived.gradients) == ["w"]
    backward = [n for n in derived.graph.nodes if n.name.startswith("weft.grad/")]
    assert {n.name.split("/")[1] for n in backward} == {"n_c", "n_loss"}
    assert not any(n.op_type == "MatMulLeftGrad" for n in backward)


def test_integer_paths_are_skipped() -> None:
    """The parameter also picks an index; nothing flows back through it."""
    nodes = [
        node("Mul", ["x", "w"], ["y"]),
        node("ArgMax", ["y"], ["best"], axis=1, keepdims=1),
        node("Cast", ["best"], ["best_float"], to=1),
        node("Mul", ["y", "best_float"], ["z"]),
        mean("z"),
    ]
    derived = differentiate(line(nodes, [weight("w", 4)]), "loss")
    x, w = np.array([[1, 2, 3, 4]], np.float32), np.array([1, 1, 2, 1], np.float32)
    (gradient,) = run(derived, {"x": x, "w": w, LOSS_SCALE: np.float32(1)}, derived.gradients["w"])
    np.testing.assert_allclose(gradient, x[0] * 2 / 4)


def test_an_optional_output_that_a_gradient_asks_for_is_named_by_the_forward_node() -> None:
    derived = differentiate(normalized_mlp(), "loss")
    (dropout,) = (n for n in derived.graph.nodes if n.op_type == "Dropout")
    assert dropout.outputs == ("kept", "weft.output/n_kept:1")
    assert derived.types[dropout.outputs[1]] == tensor(DType.BOOL, "batch", 6)
    assert normalized_mlp().nodes[3].outputs == ("kept",)


def test_an_output_that_is_named_already_is_not_named_again() -> None:
    nodes = [n if n.op_type != "Dropout" else replace(n, outputs=("kept", "mask")) for n in normalized_mlp().nodes]
    derived = differentiate(replace(normalized_mlp(), nodes=tuple(nodes)), "loss")
    (gradient,) = (n for n in derived.graph.nodes if n.op_type == "DropoutGrad")
    assert "mask" in gradient.inputs


def test_equal_constants_are_one() -> None:
    nodes = [
        node("ReduceSum", ["w", "axes"], ["a"], keepdims=0),
        node("Sqrt", ["a"], ["b"]),
        node("Sqrt", ["b"], ["loss"]),
    ]
    derived = differentiate(line(nodes, [weight("w", 3)], constants=[ints("axes", 0)]), "loss")
    written = [c.array.tobytes() for c in derived.graph.constants if c.name.startswith("weft.")]
    assert len(written) == len(set(written))


def test_an_operator_without_gradient_is_named_with_the_parameter_that_it_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from weft_graph import schema

    known = dict(schema.schemas())
    known["", "Tanh"] = replace(known["", "Tanh"], gradient=None)
    monkeypatch.setattr(schema, "schemas", lambda: known)
    with pytest.raises(NoGradientError) as caught:
        differentiate(mlp(), "loss")
    assert caught.value.message == (
        "parameter 'w1' cannot be trained, its gradient would pass node 'n_a1': operator Tanh has no gradient; make "
        "the parameter not trainable, or stop the gradient before that node (weft.ops.stop_gradient)"
    )
    assert caught.value.node == "n_a1"
    assert caught.value.pointer == "/nodes/2"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_operator_gives_a_gradient_for_each_of_its_inputs(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Too few would leave a parameter untrained without a word."""
    from weft_graph import schema

    known = dict(schema.schemas())
    known["", "MatMul"] = replace(known["", "MatMul"], gradient=lambda _: (None,) * count)
    monkeypatch.setattr(schema, "schemas", lambda: known)
    graph = line([node("MatMul", ["x", "w"], ["y"]), node("ReduceSum", ["y"], ["loss"], keepdims=0)], [weight("w", 4)])
    with pytest.raises(GraphError, match=f"'n_y': the gradient of MatMul is of {count} inputs, and the node has 2"):
        differentiate(graph, "loss")


def test_a_gradient_that_refuses_is_named_with_the_parameter() -> None:
    nodes = [node("SoftmaxCrossEntropyLoss", ["x", "label", "w"], ["loss"])]
    graph = line(nodes, [weight("w", 4)], inputs={"x": floats("batch", 4), "label": tensor(DType.INT64, "batch")})
    with pytest.raises(NoGradientError, match=r"parameter 'w' cannot be trained.*'n_loss'") as caught:
        differentiate(graph, "loss")
    assert caught.value.pointer == "/nodes/0"


def test_a_loss_is_a_float_scalar() -> None:
    nodes = [node("Mul", ["x", "w"], ["y"]), node("ArgMax", ["w"], ["i"], axis=0, keepdims=0)]
    graph = line(nodes, [weight("w", 4)], outputs=["y"])
    with pytest.raises(ShapeError, match=r"loss 'y' is float32\[batch, 4\]; a loss is a float scalar"):
        differentiate(graph, "y")
    with pytest.raises(DTypeError, match=r"loss 'i' is int64\[\]; a loss is a float scalar"):
        differentiate(graph, "i")
    with pytest.raises(GraphRefusedError, match="loss 'ghost' is a value that nothing defines"):
        differentiate(graph, "ghost")


def test_a_trainable_parameter_that_the_loss_does_not_depend_on_is_refused() -> None:
    graph = line([mean("w")], [weight("w", 2), weight("idle", 2)])
    with pytest.raises(GraphRefusedError, match="'loss' does not depend on parameter 'idle'") as caught:
        differentiate(graph, "loss")
    assert caught.value.pointer == "/parameters/1"
    assert caught.value.node == "idle"
    differentiate(replace(graph, parameters=(weight("w", 2), weight("idle", 2, trainable=False))), "loss")


def test_an_output_that_is_left_out_does_not_lead_to_an_input_that_is_left_out() -> None:
    nodes = [
        node("TopK", ["idle", "count"], ["", "at"]),
        node("Clip", ["w", "", "most"], ["clipped"]),
        mean("clipped"),
    ]
    graph = line(
        nodes, [weight("w", 2), weight("idle", 2)], constants=[ints("count", 1), scalar("most", 1.0, "float32")]
    )
    with pytest.raises(GraphRefusedError, match="'loss' does not depend on parameter 'idle'"):
        differentiate(graph, "loss")


def test_a_parameter_that_only_an_integer_path_reaches_is_refused() -> None:
    nodes = [
        node("ArgMax", ["w"], ["best"], axis=0, keepdims=0),
        node("Cast", ["best"], ["best_float"], to=1),
        node("Mul", ["v", "best_float"], ["y"]),
        mean("y"),
    ]
    with pytest.raises(GraphRefusedError, match="has no path with a gradient to parameter 'w'"):
        differentiate(line(nodes, [weight("w", 2), weight("v", 2)]), "loss")


def test_a_graph_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(GraphRefusedError, match="no trainable parameter"):
        differentiate(line([mean("x")], [weight("w", 2, trainable=False)]), "loss")


def test_names_that_users_took_are_left_to_them() -> None:
    """`check` refuses such names; the differentiation does not rest on that."""
    taken = "weft.grad/n_loss/ReduceMeanGrad:0"
    graph = line(
        [node("Mul", ["w", taken], ["y"]), mean("y")], [weight("w", 2)], constants=[scalar(taken, 2, "float32")]
    )
    derived = differentiate(graph, "loss")
    names = [name for n in derived.graph.nodes for name in n.outputs if name] + [taken]
    assert len(names) == len(set(names))
