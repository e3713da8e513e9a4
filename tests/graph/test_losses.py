"""Losses and metrics that a graph is given: what they compute, what they are computed from, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sample_graphs import ZERO, floats, ints, node, scalar, tensor, weight
from weft_graph.convert import convert
from weft_graph.differentiation import differentiate
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.ir import Constant, Graph, Input, Node, Parameter
from weft_graph.losses.comparison import Loss
from weft_graph.losses.with_loss import WithLoss, losses_of, with_loss
from weft_graph.program import LOSS_SCALE
from weft_graph.types import DType
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_nodes

CLASSES = np.array([0, 3, 2, 2, 1, 4])
SHARES = np.linspace(0, 1, 30).reshape(6, 5)
ONE = scalar("one", 1.0, "float64")
HIDDEN = node("Mul", ["p", "one"], ["y"])
"""Behind it nobody sees what made the output."""


def made_by(*nodes: Node, constants: Sequence[Constant] = (), shape: Sequence[int] = (6, 5)) -> Graph:
    """What is trained is the scores themselves, the parameter `w`; the output is `y`."""
    return Graph("g", (), (weight("w", *shape, dtype=DType.FLOAT64),), nodes, ("y",), (ONE, *constants))


def scores(scale: float = 1.0, *shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape or (6, 5)) * scale


def value_and_gradient(made: WithLoss, feeds: Mapping[str, Array], w: Array) -> tuple[float, Array]:
    derived = differentiate(made.graph, made.loss)
    table = {**feeds, "w": w, LOSS_SCALE: np.asarray(1.0, derived.types[LOSS_SCALE].dtype.numpy)}
    table.update((constant.name, constant.array) for constant in derived.graph.constants)
    wanted = (made.loss, derived.gradients["w"])
    run_nodes(KernelContext(node="", seed=0), derived.graph.nodes, table, keep=wanted)
    return float(table[wanted[0]]), table[wanted[1]]


SOFTMAX = [node("Softmax", ["w"], ["y"])]
LOG_SOFTMAX = [node("LogSoftmax", ["w"], ["y"])]
SIGMOID = [node("Sigmoid", ["w"], ["y"])]


@pytest.mark.parametrize(
    ("loss", "nodes", "scale", "oracle"),
    [
        ("cross_entropy", SOFTMAX, 300, lambda F, w, t: F.cross_entropy(w, t)),
        ("cross_entropy", LOG_SOFTMAX, 300, lambda F, w, t: F.cross_entropy(w, t)),
        ("cross_entropy", SIGMOID, 1, lambda F, w, t: F.cross_entropy(w.sigmoid(), t)),
        ("nll", LOG_SOFTMAX, 300, lambda F, w, t: F.nll_loss(F.log_softmax(w, 1), t)),
        ("log_loss", SOFTMAX, 300, lambda F, w, t: F.cross_entropy(w, t)),
        (
            "log_loss",
            [node("Softmax", ["w"], ["p"]), HIDDEN],
            3,
            lambda F, w, t: F.nll_loss(F.softmax(w, 1).log(), t),
        ),
        ("bce_with_logits", SIGMOID, 300, lambda F, w, t: F.binary_cross_entropy_with_logits(w, t)),
        ("bce", SIGMOID, 300, lambda F, w, t: F.binary_cross_entropy_with_logits(w, t)),
        (
            "bce",
            [node("Sigmoid", ["w"], ["p"]), HIDDEN],
            3,
            lambda F, w, t: F.binary_cross_entropy(w.sigmoid(), t),
        ),
        ("bce", SOFTMAX, 3, lambda F, w, t: F.binary_cross_entropy(F.softmax(w, 1), t)),
    ],
)
def test_values_and_gradients_are_those_of_pytorch(
    loss: str, nodes: Sequence[Node], scale: float, oracle: Callable[[Any, Any, Any], Any]
) -> None:
    """Also where logits are so large that their probabilities are rounded to 0 and 1."""
    torch = pytest.importorskip("torch")
    made = with_loss(made_by(*nodes), [Loss(loss)])
    (target,) = made.targets
    targets = CLASSES if target == "labels" else SHARES
    given = torch.tensor(scores(scale), requires_grad=True)
    expected = oracle(torch.nn.functional, given, torch.tensor(targets))
    expected.backward()
    got, gradient = value_and_gradient(made, {target: targets}, scores(scale))
    assert got == pytest.approx(expected.item(), rel=1e-9)
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_probabilities_of_0_and_1_have_the_loss_of_pytorchs(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    numbers = {"float16": np.float16, "float32": np.float32, "float64": np.float64}[dtype.value]
    p = np.array([[0, 1, 0, 1, 0.25, 6e-5]], numbers)
    t = np.array([[1, 0, 0, 1, 1, 1]], numbers)
    graph = Graph("g", (Input("y", tensor(dtype, 1, 6)),), (), (node("Identity", ["y"], ["z"]),), ("z",))
    expected = torch.nn.functional.binary_cross_entropy(*(torch.tensor(each.astype(np.float64)) for each in (p, t)))
    made = with_loss(graph, [Loss("bce")])
    got = evaluate(made.graph, {"y": p, "target": t})[made.loss]
    assert float(got) == pytest.approx(expected.item(), rel=1e-3 if dtype is DType.FLOAT16 else 1e-6)
    made = with_loss(graph, [Loss("log_loss", ignore_index=-1)], ["accuracy"])
    for label, of_it in ((0, 100.0), (1, 0.0), (4, np.log(4))):
        outputs = evaluate(made.graph, {"y": p, "labels": np.array([label])})
        assert float(outputs[made.loss]) == pytest.approx(of_it, rel=1e-6)
        assert outputs["accuracy"] == (label == 1)


@pytest.mark.parametrize("loss", ["bce", "log_loss"])
def test_a_probability_of_0_has_a_gradient_that_is_a_number(loss: str) -> None:
    made = with_loss(made_by(node("Relu", ["w"], ["y"])), [Loss(loss)])
    values = np.full((6, 5), -1.0)
    values[0, 0] = 1e-300
    targets = {"labels": CLASSES} if loss == "log_loss" else {"target": SHARES}
    got, gradient = value_and_gradient(made, targets, values)
    assert np.isfinite(got)
    assert np.all(np.isfinite(gradient))


ORDER = (0, 2, 3, 1)


@pytest.mark.parametrize(
    ("nodes", "shape", "moved"),
    [
        ([node("Softmax", ["w"], ["p"]), node("Identity", ["p"], ["y"])], (6, 5), lambda w: w),
        ([node("Softmax", ["w"], ["p"], axis=0), node("Transpose", ["p"], ["y"])], (5, 6), lambda w: w.T),
        ([node("Softmax", ["w"], ["p"], axis=1), node("Flatten", ["p"], ["y"])], (6, 5, 1, 1), lambda w: w[..., 0, 0]),
        ([node("Softmax", ["w"], ["p"]), node("Squeeze", ["p", "axes"], ["y"])], (6, 1, 1, 5), lambda w: w[:, 0, 0]),
        ([node("Softmax", ["w"], ["p"]), node("Reshape", ["p", "shape"], ["y"])], (2, 3, 5), lambda w: w.reshape(6, 5)),
        (
            [
                node("Softmax", ["w"], ["p"], axis=-1),
                node("Cast", ["p"], ["c"], to=1),
                node("Transpose", ["c"], ["s"], perm=(1, 0, 2)),
                node("Reshape", ["s", "shape"], ["y"]),
            ],
            (3, 2, 5),
            lambda w: w.swapaxes(0, 1).reshape(6, 5),
        ),
    ],
)
def test_a_softmax_is_found_behind_nodes_that_only_move_elements(
    nodes: Sequence[Node], shape: Sequence[int], moved: Callable[[Array], Array]
) -> None:
    graph = made_by(*nodes, constants=(ints("axes", 1, 2), ints("shape", 6, 5)), shape=shape)
    made = with_loss(graph, [Loss("cross_entropy")], ["accuracy"])
    assert made.notes == (
        "output 'y' is made by node 'n_p', a Softmax: cross_entropy takes logits, so it is computed from that node's "
        "input 'w'",
    )
    w = scores(300, *shape)
    outputs = evaluate(made.graph, {"labels": CLASSES}, parameters={"w": w})
    logits = moved(w)
    expected = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    expected -= np.take_along_axis(logits, CLASSES[:, None], 1)[:, 0]
    assert outputs[made.loss] == pytest.approx(expected.mean(), rel=1e-9)  # in float64: the Cast is left out
    assert outputs["accuracy"] == pytest.approx((logits.argmax(1) == CLASSES).mean())
    np.testing.assert_allclose(outputs["y"].sum(1), 1, rtol=1e-6)  # the output is what it was


def test_a_wider_type_of_the_output_is_that_of_the_loss_too() -> None:
    nodes = [node("Sigmoid", ["w"], ["p"]), node("Cast", ["p"], ["y"], to=11)]
    graph = Graph("g", (), (weight("w", 6, 5),), tuple(nodes), ("y",))
    made = with_loss(graph, [Loss("bce")])
    w = scores(30).astype(np.float32)
    found = evaluate(made.graph, {"target": SHARES}, parameters={"w": w})[made.loss]
    assert found.dtype == np.float64
    assert found == pytest.approx(np.mean(np.logaddexp(0, w.astype(np.float64)) - w * SHARES), rel=1e-12)


@pytest.mark.parametrize("word", ["bce", "bce_with_logits"])
@pytest.mark.parametrize("nodes", [SIGMOID, [node("Sigmoid", ["w"], ["p"]), HIDDEN]])
def test_accuracy_of_yes_or_no_asks_for_a_probability_above_a_half(word: str, nodes: Sequence[Node]) -> None:
    made = with_loss(made_by(*nodes), [Loss(word)], ["accuracy"])
    yes = (SHARES > 0.5).astype(float)
    got = evaluate(made.graph, {"target": yes}, parameters={"w": scores()})["accuracy"]
    said = scores() > 0
    if word == "bce_with_logits" and len(nodes) > 1:
        said = np.ones_like(said)  # what is taken for logits are probabilities, all above 0
    assert got == pytest.approx((said == yes).mean())


@pytest.mark.parametrize(
    ("loss", "activation", "message"),
    [
        ("nll", "Softmax", "a Softmax, and nll takes log-probabilities: use log_loss, .* or cross_entropy"),
        ("nll", "Sigmoid", "a Sigmoid, and nll takes log-probabilities: use bce"),
        ("log_loss", "LogSoftmax", "a LogSoftmax, and log_loss takes probabilities: use nll"),
        ("bce", "LogSoftmax", "a LogSoftmax, and bce takes probabilities: use cross_entropy or nll"),
        ("bce_with_logits", "Softmax", "a Softmax, and bce_with_logits takes logits: use bce"),
        ("bce_with_logits", "LogSoftmax", "a LogSoftmax, and bce_with_logits takes logits: use cross_entropy"),
    ],
)
def test_a_loss_of_something_else_is_refused_with_the_word_to_use(loss: str, activation: str, message: str) -> None:
    with pytest.raises(GraphRefusedError, match=f"output 'y' is made by node 'n_y', {message}") as caught:
        with_loss(made_by(node(activation, ["w"], ["y"])), [Loss(loss)])
    assert caught.value.node == "n_y"


def test_a_softmax_over_another_axis_than_the_classes_is_refused() -> None:
    over_rows = made_by(node("Softmax", ["w"], ["y"], axis=1), shape=(2, 5, 7))
    message = "a Softmax over axis 1, and cross_entropy looks for classes on axis 2: set classes_axis to 1, or .* 'w'"
    with pytest.raises(GraphRefusedError, match=message):
        with_loss(over_rows, [Loss("cross_entropy")])
    assert with_loss(over_rows, [Loss("cross_entropy", classes_axis=1)]).notes
    nodes = [node("Softmax", ["w"], ["p"]), node("Reshape", ["p", "shape"], ["y"])]
    with pytest.raises(GraphRefusedError, match="over values that are not one axis of the output, and log_loss looks"):
        with_loss(made_by(*nodes, constants=[ints("shape", 6, 5)], shape=(3, 10)), [Loss("log_loss")])
    with pytest.raises(GraphRefusedError, match="a LogSoftmax over axis 0"):
        with_loss(made_by(node("LogSoftmax", ["w"], ["y"], axis=0)), [Loss("nll")])


def test_what_may_be_meant_is_a_note_and_one_class_is_none() -> None:
    (note,) = with_loss(made_by(*SIGMOID), [Loss("cross_entropy")]).notes
    assert "a Sigmoid, whose classes do not exclude each other, and cross_entropy is of classes that do" in note
    with pytest.raises(ShapeError, match="one class, on axis 1: for targets of yes or no use bce_with_logits or bce"):
        with_loss(made_by(*SIGMOID, shape=(6, 1)), [Loss("cross_entropy")])
    for word, nodes in (("mse", SOFTMAX), ("bce", SIGMOID), ("log_loss", SOFTMAX)):
        assert with_loss(made_by(*nodes), [Loss(word)]).notes == ()


def heads(*more: Parameter) -> Graph:
    """x -> h -> (a, b), with a mean that is a loss itself."""
    return Graph(
        "heads",
        (Input("x", floats("batch", 3)),),
        (weight("w", 3, 4), weight("to_a", 4, 5), weight("to_b", 4, 2), *more),
        (
            node("MatMul", ["x", "w"], ["h"]),
            node("MatMul", ["h", "to_a"], ["a"]),
            node("MatMul", ["h", "to_b"], ["b"]),
            node("ReduceMean", ["b"], ["mean/b"], keepdims=0),
        ),
        ("a", "b", "mean/b"),
    )


X = np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3)
TWO = SHARES[:, :2].astype(np.float32)


def test_several_losses_are_added_up_and_each_is_a_metric() -> None:
    losses = [Loss("cross_entropy", "a", "ya"), Loss("mse", "b", "yb", weight=0.5), Loss("mean/b", weight=-2.0)]
    made = with_loss(heads(), losses, ["accuracy", "l1"])
    assert made.targets == ("ya", "yb")
    names = ["a_cross_entropy", "b_mse", "mean_b", "accuracy", "l1"]
    assert list(made.metrics) == names
    outputs = evaluate(made.graph, {"x": X, "ya": CLASSES, "yb": TWO})
    values = {name: float(outputs[value]) for name, value in made.metrics.items()}
    total = values["a_cross_entropy"] + 0.5 * values["b_mse"] - 2 * values["mean_b"]
    assert outputs[made.loss] == pytest.approx(total, rel=1e-6)
    for word, output, target in (("cross_entropy", "a", CLASSES), ("mse", "b", TWO)):
        one = with_loss(heads(), [Loss(word, output, "t")])
        assert values[f"{output}_{word}"] == evaluate(one.graph, {"x": X, "t": target})[one.loss]
    assert values["l1"] == pytest.approx(np.abs(outputs["b"] - TWO).mean(), rel=1e-6)
    assert values["accuracy"] == pytest.approx((outputs["a"].argmax(1) == CLASSES).mean())
    convert(made.graph, loss=made.loss, metrics=made.metrics)


def test_the_gradient_of_several_losses_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    made = with_loss(made_by(*SOFTMAX), [Loss("cross_entropy", weight=0.25), Loss("mse", weight=3.0)])
    given = torch.tensor(scores(), requires_grad=True)
    functional = torch.nn.functional
    of_classes = functional.cross_entropy(given, torch.tensor(CLASSES))
    (of_classes / 4 + 3 * functional.mse_loss(given.softmax(1), torch.tensor(SHARES))).backward()
    _, gradient = value_and_gradient(made, {"labels": CLASSES, "target": SHARES}, scores())
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=1e-9)


def test_one_loss_may_have_a_weight() -> None:
    whole, half = (with_loss(heads(), [Loss("mse", "b", weight=weight)]) for weight in (1.0, 0.5))
    values = [evaluate(each.graph, {"x": X, "target": TWO})[each.loss] for each in (whole, half)]
    assert values[1] == values[0] / 2
    assert dict(half.metrics) == {}


def test_a_metric_of_several_outputs_has_their_names() -> None:
    losses = [Loss("cross_entropy", "a", "y"), Loss("cross_entropy", "b", "y"), Loss("cross_entropy", "a", "z")]
    made = with_loss(heads(), losses, ["accuracy", "cross_entropy"])
    assert made.targets == ("y", "z")
    assert [each.name for each in made.graph.inputs] == ["x", "y", "z"]
    assert list(made.metrics) == [
        *("a_cross_entropy", "b_cross_entropy", "a_cross_entropy_2"),
        *("a_accuracy", "b_accuracy", "a_accuracy_2"),
    ]


def test_losses_of_two_types_are_added_in_the_wider_one() -> None:
    graph = heads()
    nodes = (*graph.nodes, node("Cast", ["b"], ["half"], to=10))
    graph = replace(graph, nodes=nodes, outputs=("a", "half"))
    made = with_loss(graph, [Loss("mse", "half", "t"), Loss("cross_entropy", "a")])
    outputs = evaluate(made.graph, {"x": X, "labels": CLASSES, "t": TWO.astype(np.float16)})
    assert outputs[made.loss].dtype == np.float32


@pytest.mark.parametrize(
    ("losses", "metrics", "message"),
    [
        ([], (), "there is no loss; one is needed"),
        ([Loss("mse", "a"), Loss("mse", "b")], (), "output 'b' would be compared with 'target' too: name the `target`"),
        ([Loss("mse", "a", "t"), Loss("mse", "b", "t")], (), r"target 't' of output 'b' should be float32\[batch, 2\]"),
        ([Loss("mse", "a", "t"), Loss("l1", "b", "s")], ("accuracy",), "accuracy is of classes; the loss 'mse'"),
        ([Loss("accuracy", "a")], (), "accuracy has no gradient: it can be a metric, and no loss"),
        (
            [Loss("mse", "hh")],
            (),
            r"no output 'hh'; did you mean 'h'\?",
        ),
        ([Loss("mse", "w")], (), "there is no output 'w'"),
    ],
)
def test_losses_that_do_not_go_together_say_why(losses: list[Loss], metrics: Sequence[str], message: str) -> None:
    with pytest.raises(GraphRefusedError, match=message):
        with_loss(heads(), losses, metrics)


@pytest.mark.parametrize("weight", [0.0, float("nan"), float("inf")])
def test_a_weight_is_a_number_that_counts(weight: float) -> None:
    with pytest.raises(GraphRefusedError, match="it must be a number other than 0"):
        Loss("mse", weight=weight)


def test_a_value_inside_the_model_is_an_output_too_and_what_lies_behind_it_rests() -> None:
    statistics = [weight(name, 2, trainable=False) for name in ("mean", "variance")]
    graph = heads(weight("scale", 2), weight("bias", 2), *statistics)
    normalized = node(
        *("BatchNormalization", ["b", "scale", "bias", "mean", "variance"], ["n"]),
        training_mode=1,
    )
    graph = replace(graph, nodes=(*graph.nodes, normalized), outputs=("a", "n"))
    made = with_loss(graph, [Loss("mse", "h")])
    assert made.notes == ("parameters that lead to no loss do not train: 'to_a', 'to_b', 'scale', 'bias'",)
    assert [each.name for each in made.graph.parameters if each.trainable] == ["w"]
    assert made.graph.outputs == (made.loss, "a", "n")
    programs = convert(made.graph, loss=made.loss, metrics=made.metrics)
    assert "BatchNormalization" not in {each.op_type for each in programs.train.nodes}
    kept = with_loss(graph, [Loss("mse", "n")])
    assert kept.notes == ("parameters that lead to no loss do not train: 'to_a'",)
    programs = convert(kept.graph, loss=kept.loss, metrics=kept.metrics)
    assert "BatchNormalization" in {each.op_type for each in programs.train.nodes}


def test_many_parameters_that_rest_are_counted() -> None:
    many = tuple(Parameter(f"p{number}", floats(4, 5), ZERO) for number in range(10))
    graph = heads(*many)
    (note,) = with_loss(graph, [Loss("mse", "b")]).notes
    assert note.endswith("'to_a', 'p0', 'p1', 'p2', 'p3', 'p4', 'p5', 'p6' and 3 more")


def test_losses_as_texts_have_weights_and_come_in_pairs() -> None:
    assert losses_of(["0.5*cross_entropy", "mse", "-1*mean/b"], ["a", "h", ""], ["ya", "yb", ""], 1, -100) == (
        Loss("cross_entropy", "a", "ya", 0.5, 1, -100),
        Loss("mse", "h", "yb"),
        Loss("mean/b", weight=-1.0, classes_axis=1, ignore_index=-100),
    )
    assert losses_of(["a*b"]) == (Loss("a*b"),)
    with pytest.raises(GraphRefusedError, match="there are 2 losses, and `output` is given 1 times"):
        losses_of(["mse", "l1"], ["a"])
