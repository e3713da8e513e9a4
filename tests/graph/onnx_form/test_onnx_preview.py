"""Models that hold their own training step: it runs as the file says, or becomes one of weft's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_models import floats, initializer, model, run, weights
from weft_graph.differentiation import differentiate
from weft_graph.errors import GraphError
from weft_graph.onnx_form.errors import OnnxError, ReadOptions
from weft_graph.onnx_form.reader import read_model
from weft_graph.onnx_form.training import without_training

make = helper.make_node
PREVIEW = "ai.onnx.preview.training"


def gradient(
    xs: list[str], y: str, outputs: list[str], zs: list[str] | None = None, inputs: list[str] | None = None
) -> Any:
    given: dict[str, Any] = {"xs": xs, "y": y} | ({"zs": zs} if zs else {})
    return make("Gradient", inputs or [*xs, *(zs or [])], outputs, name="gradient", domain=PREVIEW, **given)


def product() -> list[onnx.NodeProto]:
    return [make("Mul", ["a", "b"], ["p"]), make("Mul", ["p", "a"], ["y"])]


def inputs(*names: str) -> list[onnx.ValueInfoProto]:
    return [floats(name, 3) for name in names]


A, B = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)


def test_a_gradient_is_that_of_the_sum() -> None:
    proto = model(
        [*product(), gradient(["a", "b"], "y", ["da", "db"])], inputs("a", "b"), ["da", "db"], domains=[PREVIEW]
    )
    da, db = run(proto, {"a": A, "b": B})
    np.testing.assert_allclose(da, 2 * A * B)
    np.testing.assert_allclose(db, A * A)


def test_a_gradient_at_other_values() -> None:
    node = gradient(["a"], "y", ["da"], zs=["b"], inputs=["c", "b"])
    proto = model([*product(), node], inputs("a", "b", "c"), ["y", "da"], domains=[PREVIEW])
    y, da = run(proto, {"a": A, "b": B, "c": A + 1})
    np.testing.assert_allclose(y, A * A * B)
    np.testing.assert_allclose(da, 2 * (A + 1) * B)


def test_what_does_not_lead_there_has_gradient_zero() -> None:
    proto = model(
        [*product(), gradient(["b", "c"], "p", ["db", "dc"])], inputs("a", "b", "c"), ["db", "dc"], domains=[PREVIEW]
    )
    db, dc = run(proto, {"a": A, "b": B, "c": A})
    np.testing.assert_allclose(db, A)
    assert dc.tolist() == [0, 0, 0]


def test_a_gradient_of_what_is_not_there_is_refused() -> None:
    for node in (
        gradient(["a"], "ghost", ["da"]),
        gradient(["a"], "", ["da"]),
        gradient(["ghost"], "y", ["da"], inputs=["a"]),
    ):
        with pytest.raises(GraphError, match="gradient"):
            read_model(model([*product(), node], inputs("a", "b"), ["da"], domains=[PREVIEW]))


def training(op_type: str, rate: float | None = 0.1, **attributes: Any) -> onnx.ModelProto:
    """loss = mean((x w)^2), and one step of the optimizer on w."""
    states = ["v", "h"][: 2 if op_type == "Adam" else 1]
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Mul", ["p", "p"], ["q"]),
        make("ReduceMean", ["q"], ["loss"], keepdims=0),
        gradient(["w"], "loss", ["dw"], zs=["x"]),
        make(
            op_type,
            ["r", "t", "w", "dw", *states],
            ["w_new", *(f"{s}_new" for s in states)],
            name="step",
            domain=PREVIEW,
            **attributes,
        ),
    ]
    values = [weights("w", 3, 1)] + ([initializer("r", np.float32(rate))] if rate is not None else [])
    fed = [floats("x", "n", 3), helper.make_tensor_value_info("t", 7, []), *(floats(s, 3, 1) for s in states)]
    if rate is None:
        fed.append(floats("r"))
    return model(nodes, fed, ["w_new", *(f"{s}_new" for s in states)], values, domains=[PREVIEW])


def test_a_training_step_becomes_a_rule() -> None:
    taken = without_training(training("Adam", alpha=0.8, beta=0.99, epsilon=1e-7))
    assert taken is not None
    assert (taken.step.rule, taken.step.loss) == ("adam", "loss")
    assert taken.step.hyper == pytest.approx({"lr": 0.1, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7})
    graph = read_model(taken.model).graph
    assert [node.op_type for node in graph.nodes] == ["MatMul", "Mul", "ReduceMean"]
    assert ([i.name for i in graph.inputs], graph.outputs) == (["x"], ("loss",))
    assert list(differentiate(graph, "loss").gradients) == ["w"]


def test_other_rules() -> None:
    momentum = without_training(training("Momentum", None, alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.01))
    adagrad = without_training(training("Adagrad", norm_coefficient=0.5))
    assert momentum is not None
    assert adagrad is not None
    assert (momentum.step.rule, momentum.step.hyper) == ("sgd", {"momentum": 0.9, "weight_decay": 0.01})
    assert adagrad.step.hyper == pytest.approx({"lr": 0.1, "epsilon": 1e-6, "weight_decay": 0.5})
    nesterov = without_training(training("Momentum", alpha=0.9, beta=1.0, mode="nesterov", norm_coefficient=0.01))
    assert nesterov is not None
    assert nesterov.step.rule == "nesterov"
    assert nesterov.step.hyper == pytest.approx({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})


def test_the_reader_takes_the_step_out_and_says_what_it_was() -> None:
    imported = read_model(training("Adam", alpha=0.8, beta=0.99, epsilon=1e-7))
    assert imported.step is not None
    assert (imported.step.rule, imported.step.loss) == ("adam", "loss")
    assert imported.step.hyper == pytest.approx({"lr": 0.1, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7})
    assert [node.op_type for node in imported.graph.nodes] == ["MatMul", "Mul", "ReduceMean"]
    assert [parameter.name for parameter in imported.graph.parameters if parameter.trainable] == ["w"]
    assert not imported.warnings


def test_an_optimizer_that_is_read_as_it_is_stays_in_the_graph() -> None:
    proto = training("Adam")
    del proto.graph.node[:-1]
    proto.graph.input.append(floats("dw", 3, 1))
    imported = read_model(proto, ReadOptions(training=False))
    assert imported.step is None
    assert imported.graph.outputs == ("w_new", "v_new", "h_new")


def test_a_step_that_is_no_rule_is_refused_by_the_reader() -> None:
    with pytest.raises(OnnxError, match=r"'step' \(Momentum\): mode 'sideways' is neither"):
        read_model(training("Momentum", alpha=0.9, beta=1.0, mode="sideways", norm_coefficient=0.0))


def test_a_model_without_an_optimizer_is_left_alone() -> None:
    assert without_training(model([make("Relu", ["x"], ["y"])])) is None


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("Adam", {"norm_coefficient": 0.1}, "norm_coefficient is 0.1"),
        ("Adagrad", {"decay_factor": 0.1}, "decay_factor is 0.1"),
        ("Momentum", {"alpha": 0.9, "beta": 1.0, "mode": "sideways"}, "mode 'sideways' is neither"),
        ("Momentum", {"alpha": 0.9, "beta": 0.5, "mode": "standard"}, "beta is 0.5"),
    ],
)
def test_what_is_no_rule_of_wefts_is_refused_by_the_nodes_name(op_type: str, attributes: Any, message: str) -> None:
    with pytest.raises(OnnxError, match=f"'step' .*{message}"):
        without_training(training(op_type, **attributes))


def test_gradients_of_another_origin_are_refused() -> None:
    proto = training("Adam")
    proto.graph.node[-1].input[3] = "q"
    with pytest.raises(OnnxError, match=r"'step'.*not those of one Gradient node"):
        without_training(proto)
    proto = training("Adam")
    del proto.graph.initializer[0]
    with pytest.raises(OnnxError, match="'w' is no initializer"):
        without_training(proto)
