"""Derivatives through the bodies of If, Loop and Scan: nested ones, random ones, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flow_graphs import body, computed, derived, differences, graph, op
from weft_graph.differentiation import differentiate
from weft_graph.errors import GraphRefusedError, NoGradientError
from weft_graph.ir import Input
from weft_graph.names import all_nodes, drawn_as
from weft_graph.types import DType, TensorType
from weft_kernels.kernel import Array

RNG = np.random.default_rng(5)
W, X = RNG.normal(size=3) * 0.5, RNG.normal(size=(4, 3))
TOTAL = op("ReduceSum", "ys", "loss", keepdims=0)


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    with jax.enable_x64(True):
        yield


def same(gradients: dict[str, Array], expected: dict[str, Any]) -> None:
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_branch_in_a_scan_captures_from_two_levels_up() -> None:
    """The parameters are read in the branches alone, and pass the scan's body as captured values."""
    then = body("", "h w v", "t", op("Mul", "h w", "hw"), op("Sin", "hw", "t"))
    other = body("", "h w v", "u", op("Mul", "h v", "u"))
    scanned = body(
        "h x",
        "w v",
        "h2 y",
        op("ReduceSum", "x", "sum", keepdims=0),
        op("Greater", "sum zero", "up"),
        op("If", "up h w v", "g", then_branch=then, else_branch=other),
        op("Add", "g x", "h2"),
        op("Mul", "h2 h2", "y"),
        constants={"zero": np.array(0.0)},
    )
    values = {"w": W, "v": RNG.normal(size=3), "h0": RNG.normal(size=3)}
    whole = graph([op("Scan", "h0 xs w v", "hT ys", body=scanned, num_scan_inputs=1), TOTAL], values, {"xs": X})
    loss, gradients = computed(derived(whole), {**values, "xs": X})

    def reference(p: dict[str, Any]) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jax.lax.cond(x.sum() > 0, lambda: jnp.sin(h * p["w"]), lambda: h * p["v"]) + x
            return h, h * h

        return jax.lax.scan(step, p["h0"], X)[1].sum()

    assert len({bool(x.sum() > 0) for x in X}) == 2
    np.testing.assert_allclose(loss, reference(values))
    same(gradients, jax.grad(reference)(values))


def test_a_loop_in_a_loop() -> None:
    inner = body("j go_in u", "w", "go_in u2", op("Mul", "u w", "uw"), op("Tanh", "uw", "t"), op("Add", "u t", "u2"))
    outer = body(
        "i go v",
        "w n",
        "go v3 v3",
        op("Loop", "n - v w", "v2", body=inner),
        op("Mul", "v2 w", "v3"),
    )
    values, turns = {"w": W, "v0": RNG.normal(size=3)}, {"m": np.array(3), "n": np.array(2)}
    whole = graph([op("Loop", "m - v0 w n", "vT ys", body=outer), TOTAL], values, turns)
    loss, gradients = computed(derived(whole), {**values, **turns})

    def reference(p: dict[str, Any]) -> Any:
        v, total = p["v0"], 0.0
        for _ in range(3):
            for _ in range(2):
                v = v + jnp.tanh(v * p["w"])
            v = v * p["w"]
            total += v.sum()
        return total

    np.testing.assert_allclose(loss, reference(values))
    same(gradients, jax.grad(reference)(values))


def test_carried_values_that_change_places_and_outputs_given_twice() -> None:
    """(a, b) becomes (b, a w): what is carried is an input of the body itself, and one value is given twice."""
    swapped = body("i go a b", "w", "go b aw aw b", op("Mul", "a w", "aw"))
    values = {"w": W, "a0": RNG.normal(size=3), "b0": RNG.normal(size=3)}
    nodes = [
        op("Loop", "m - a0 b0 w", "aT bT p q", body=swapped),
        op("Mul", "p q", "pq"),
        op("ReduceSum", "pq", "s", keepdims=0),
        op("ReduceSumSquare", "aT", "t", keepdims=0),
        op("Add", "s t", "loss"),
    ]
    whole = graph(nodes, values, constants={"m": np.array(5)})
    loss, gradients = computed(derived(whole), values)

    def reference(p: dict[str, Any]) -> Any:
        a, b, total = p["a0"], p["b0"], 0.0
        for _ in range(5):
            a, b, given, passed = b, a * p["w"], a * p["w"], b
            total += (given * passed).sum()
        return total + (a * a).sum()

    np.testing.assert_allclose(loss, reference(values))
    same(gradients, jax.grad(reference)(values))


def test_a_turn_that_is_computed_again_draws_what_it_drew() -> None:
    """Differences hold the masks still, which depend on the turn; another mask would give another gradient."""
    dropped = body(
        "h",
        "w half yes",
        "h2",
        op("Mul", "h w", "hw"),
        op("Dropout", "hw half yes", "kept"),
        op("Tanh", "kept", "t"),
        op("Add", "h t", "h2"),
    )
    turned = body("i go h", "w half yes", "go h2 h2", *dropped.nodes)
    values = {"w": RNG.normal(size=8), "h0": RNG.normal(size=8)}
    fixed = {"half": np.array(0.5), "yes": np.array(True), "m": np.array(4)}
    result = derived(graph([op("Loop", "m - h0 w half yes", "hT ys", body=turned), TOTAL], values, constants=fixed))
    again = [node for node, _ in all_nodes(result.graph.nodes) if node.op_type == "Dropout"]
    assert [drawn_as(node.name) for node in again] == ["n_kept", "n_kept"]
    _, gradients = computed(result, values)
    for name in values:
        np.testing.assert_allclose(gradients[name], differences(result, values, name), rtol=1e-6, atol=1e-8)


def test_what_a_branch_does_not_need_is_not_computed_again() -> None:
    then = body("", "w x", "y", op("Exp", "x", "e"), op("Mul", "w e", "y"))
    other = body("", "w x", "z", op("Sqrt", "x", "q"), op("Add", "w q", "z"))
    values = {"w": np.abs(W)}
    whole = graph(
        [op("If", "c w x", "ys", then_branch=then, else_branch=other), TOTAL], values, {"x": W, "c": np.array(True)}
    )
    (backward,) = (
        node for node in derived(whole).graph.nodes if node.name.startswith("weft.grad") and node.op_type == "If"
    )
    bodies = {name: [inner.op_type for inner in found.nodes] for name, found in backward.attributes.items()}  # type: ignore[union-attr]  # bodies alone
    assert bodies == {"then_branch": ["Exp", "Mul"], "else_branch": []}


def test_a_body_reads_what_turns_began_with_alone() -> None:
    """A sum over turns needs nothing of the way forward but their number."""
    added = body("i go s", "w", "go s2", op("Add", "s w", "s2"))
    whole = graph([op("Loop", "m - s0 w", "ys", body=added), TOTAL], {"w": W, "s0": W}, constants={"m": np.array(6)})
    (forward,) = (node for node in derived(whole).graph.nodes if node.op_type == "Loop")
    assert forward.outputs == ("ys", "weft.output/n_ys:1")
    assert forward.attributes["body"].outputs[2:] == ("i",)  # type: ignore[union-attr]  # a body
    _, gradients = computed(derived(whole), {"w": W, "s0": W})
    same(gradients, {"w": np.full(3, 6.0), "s0": np.ones(3)})


def blocked(op_type: str, **attributes: Any) -> Any:
    inner = body("", "h w", "blocked", op("Mul", "h w", "hw"), op(op_type, "hw", "blocked", **attributes))
    outer = body(
        "h x",
        "w yes",
        "h2",
        op("If", "yes h w", "g", then_branch=inner, else_branch=body("", "h w", "h")),
        op("Add", "g x", "h2"),
    )
    return graph(
        [op("Scan", "x0 xs w yes", "ys", body=outer, num_scan_inputs=1), TOTAL],
        {"w": W},
        {"xs": X, "x0": W, "yes": np.array(True)},
    )


def test_an_operator_in_a_body_that_has_no_gradient_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from weft_graph import schema

    known = dict(schema.schemas())
    known["", "Tanh"] = replace(known["", "Tanh"], gradient=None)
    monkeypatch.setattr(schema, "schemas", lambda: known)
    with pytest.raises(NoGradientError) as caught:
        differentiate(blocked("Tanh"), "loss")
    assert caught.value.message == (
        "parameter 'w' cannot be trained, its gradient would pass node 'n_blocked': operator Tanh has no gradient; "
        "make the parameter not trainable, or stop the gradient before that node (weft.ops.stop_gradient)"
    )
    assert caught.value.node == "n_blocked"
    assert caught.value.pointer == "/nodes/0/attributes/body/nodes/0/attributes/then_branch/nodes/1"


def test_steps_in_a_body_let_nothing_through() -> None:
    with pytest.raises(GraphRefusedError, match="has no path with a gradient to parameter 'w'"):
        differentiate(blocked("Floor"), "loss")


def test_a_stopped_gradient_lets_an_operator_without_one_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from weft_graph import schema

    known = dict(schema.schemas())
    known["", "Tanh"] = replace(known["", "Tanh"], gradient=None)
    monkeypatch.setattr(schema, "schemas", lambda: known)
    stopped = op("StopGradient", "w", "still", domain="weft")
    nodes = [stopped, op("Tanh", "still", "t"), op("Mul", "t w", "ys"), TOTAL]
    _, gradients = computed(derived(graph(nodes, {"w": W})), {"w": W})
    same(gradients, {"w": np.tanh(W)})


def test_a_carried_value_whose_shape_changes_is_refused_where_its_turns_are_needed() -> None:
    grown = body("i go v", "w", "go v2", op("Mul", "v v", "vv"), op("Concat", "vv w", "v2", axis=0))
    whole = graph([op("Loop", "m - w w", "ys", body=grown), TOTAL], {"w": W}, constants={"m": np.array(2)})
    with pytest.raises(NoGradientError, match=r"'v' is float64\[3\] in the first turn and .* in later ones"):
        differentiate(whole, "loss")


def test_a_loop_of_no_turns_passes_gradients_on() -> None:
    turned = body("i go v", "w", "go v2 v2", op("Mul", "v w", "v2"))
    nodes = [op("Loop", "m - w w", "last ys", body=turned), op("ReduceSum", "last", "loss", keepdims=0)]
    result = derived(graph(nodes, {"w": W}, {"m": np.array(0)}))
    _, gradients = computed(result, {"w": W, "m": np.array(0)})
    same(gradients, {"w": np.ones(3)})
    _, gradients = computed(result, {"w": W, "m": np.array(2)})
    same(gradients, {"w": 3 * W * W})


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_state_whose_next_value_reads_no_parameter_has_a_gradient_after_no_turns(turns: int) -> None:
    """After no turns its last value is its first one; after one it is free of it, and the other state is not."""
    turned = body("i go u v", "", "go u2 v2", op("Tanh", "u", "u2"), op("Sin", "u", "v2"))
    nodes = [
        op("Loop", "m - x w", "uT vT", body=turned),
        op("Mul", "vT k", "scaled"),
        op("Add", "scaled w", "ys"),
        TOTAL,
    ]
    given = {"m": np.array(turns), "x": X[0], "k": np.array([10.0, 20.0, 30.0])}
    result = derived(graph(nodes, {"w": W}, given))
    _, gradients = computed(result, {"w": W, **given})
    same(gradients, {"w": given["k"] + 1 if turns == 0 else np.ones(3)})
    np.testing.assert_allclose(gradients["w"], differences(result, {"w": W, **given}, "w"), rtol=1e-7)


@pytest.mark.parametrize("turns", [0, 2])
def test_a_scan_over_nothing_passes_its_first_state_on(turns: int) -> None:
    scanned = body("h x", "", "h2", op("Tanh", "x", "h2"))
    nodes = [
        op("Scan", "w xs", "hT", body=scanned, num_scan_inputs=1),
        op("Add", "hT w", "ys"),
        TOTAL,
    ]
    whole = graph(nodes, {"w": W}, {"xs": X[:turns]})
    whole = replace(whole, inputs=(Input("xs", TensorType(DType.FLOAT64, ("n", 3))),))
    _, gradients = computed(derived(whole), {"w": W, "xs": X[:turns]})
    same(gradients, {"w": np.full(3, 2.0 if turns == 0 else 1.0)})


def test_a_parameter_that_only_begins_a_loop_is_refused_where_a_turn_is_sure() -> None:
    turned = body("i go h", "x", "go h2", op("Tanh", "x", "h2"))
    nodes = [op("Loop", "m - w x", "ys", body=turned), TOTAL]
    _, gradients = computed(
        derived(graph(nodes, {"w": W}, {"m": np.array(0), "x": X[0]})), {"w": W, "m": np.array(0), "x": X[0]}
    )
    same(gradients, {"w": np.ones(3)})
    with pytest.raises(GraphRefusedError, match="has no path with a gradient to parameter 'w'"):
        derived(graph(nodes, {"w": W}, {"x": X[0]}, {"m": np.array(2)}))
