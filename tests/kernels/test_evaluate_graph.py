"""Evaluation of whole graphs: values, first values, and what is said of feeds that do not fit."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from weft_graph.errors import GraphError, ShapeError
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.types import DType, TensorType
from weft_kernels.evaluate import FeedError, evaluate
from weft_kernels.initializers import first_values
from weft_kernels.run import KernelError

F, I64 = DType.FLOAT32, DType.INT64
NORMAL = Initializer("RandomNormal", {"mean": 0.0, "scale": 1.0})


def classifier() -> Graph:
    """x (batch, 4), y (batch,) -> logits by one layer, and the loss; the nodes are not in order."""
    return Graph(
        name="classifier",
        inputs=(Input("x", TensorType(F, ("batch", 4))), Input("y", TensorType(I64, ("batch",)))),
        parameters=(
            Parameter("w", TensorType(F, (4, 3)), NORMAL),
            Parameter("b", TensorType(F, (3,)), Initializer("ConstantOfShape", {"value": 0.5})),
        ),
        nodes=(
            Node("SoftmaxCrossEntropyLoss", "loss", ("logits", "y"), ("l",)),
            Node("Mul", "double", ("h", "two"), ("logits",)),
            Node("Gemm", "layer", ("x", "w", "b"), ("h",)),
        ),
        outputs=("l", "logits"),
        constants=(Constant("two", np.array(2.0, dtype=np.float32)),),
    )


def feeds(batch: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((batch, 4)).astype(np.float32), "y": rng.integers(0, 3, batch)}


def test_outputs_are_the_formula() -> None:
    given = feeds()
    w, b = np.ones((4, 3), dtype=np.float32), np.arange(3, dtype=np.float32)
    result = evaluate(classifier(), given, parameters={"w": w, "b": b})
    logits = 2 * (given["x"] @ w + b)
    log_prob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert list(result) == ["l", "logits"]
    np.testing.assert_allclose(result["logits"], logits, rtol=1e-6)
    np.testing.assert_allclose(result["l"], -log_prob[np.arange(5), given["y"]].mean(), rtol=1e-5)
    assert result["l"].shape == ()
    assert result["l"].dtype == np.float32


def test_parameters_left_out_have_their_first_values() -> None:
    given = feeds()
    w = first_values(NORMAL, seed=7, key="w", start=0, stop=12, dtype="float32").reshape(4, 3)
    b = np.full(3, 0.5, dtype=np.float32)
    expected = evaluate(classifier(), given, parameters={"w": w, "b": b})
    for some in ({}, {"b": b}, {"w": w}):
        result = evaluate(classifier(), given, seed=7, parameters=some)
        np.testing.assert_array_equal(result["logits"], expected["logits"])
    other = evaluate(classifier(), given, seed=8)
    assert not np.array_equal(other["logits"], expected["logits"])


def test_an_output_is_the_callers_own() -> None:
    """Also where the node gives back its input."""
    graph = Graph(
        name="same",
        inputs=(Input("x", TensorType(F, (2,))),),
        parameters=(),
        nodes=(Node("Identity", "same", ("x",), ("y",)),),
        outputs=("y", "x"),
    )
    x = np.ones(2, dtype=np.float32)
    result = evaluate(graph, {"x": x})
    result["y"][0] = result["x"][0] = 9
    assert x.tolist() == [1, 1]


def test_an_empty_batch_is_evaluated() -> None:
    assert evaluate(classifier(), feeds(batch=0))["logits"].shape == (0, 3)


def test_the_sdk_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="weft.evaluators", name="numpy")
    assert found.load() is evaluate


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, r"input 'x' is float32\[batch, 4\], and nothing is fed to it"),
        ({"z": np.ones(1)}, "the graph has no input 'z'; it has x, y"),
        ({"x": np.ones((5, 3), np.float32)}, r"input 'x' is float32\[batch, 4\], and float32\[5, 3\] is fed to it"),
        ({"x": np.ones(4, np.float32)}, r"input 'x' is float32\[batch, 4\], and float32\[4\] is fed to it"),
        ({"x": np.ones((5, 4))}, r"input 'x' is float32\[batch, 4\], and float64\[5, 4\] is fed to it"),
        ({"x": np.ones((5, 4), np.complex64)}, r"'x' is float32\[batch, 4\], and complex64\[5, 4\] is fed to it"),
        ({"x": np.ones((5, 4), ">f4")}, r"'x' is float32\[batch, 4\], and >f4\[5, 4\] is fed to it"),
        (
            {"y": np.zeros(6, np.int64)},
            r"dimension 'batch' is 6 in input 'y' \(int64\[batch\]\), and 5 in input 'x' \(float32\[batch, 4\]\)",
        ),
    ],
)
def test_feeds_that_do_not_fit_are_named_with_both_sides(change: dict[str, Any], message: str) -> None:
    given = {name: array for name, array in {**feeds(), **change}.items() if array is not None}
    with pytest.raises(FeedError, match=message):
        evaluate(classifier(), given)


def test_parameters_that_do_not_fit_are_named_with_both_sides() -> None:
    with pytest.raises(FeedError, match=r"parameter 'w' is float32\[4, 3\], and float32\[3, 4\] is fed to it"):
        evaluate(classifier(), feeds(), parameters={"w": np.ones((3, 4), np.float32)})
    with pytest.raises(FeedError, match="the graph has no parameter 'v'; it has b, w"):
        evaluate(classifier(), feeds(), parameters={"v": np.ones(1)})


def test_a_label_that_is_no_class_is_named_with_its_node() -> None:
    given = {**feeds(), "y": np.array([0, 1, 3, 0, 0])}
    with pytest.raises(KernelError, match=r"node 'loss' \(SoftmaxCrossEntropyLoss\): label 3 is outside \[0, 3\)"):
        evaluate(classifier(), given)


def test_an_illegal_graph_is_refused_before_anything_runs() -> None:
    graph = classifier()
    broken = Graph(graph.name, graph.inputs, graph.parameters, graph.nodes, ("nothing",), graph.constants)
    with pytest.raises(GraphError, match="'nothing'"):
        evaluate(broken, feeds())
    wrong = Graph(graph.name, graph.inputs, graph.parameters[:1], graph.nodes[2:], ("h",), graph.constants)
    with pytest.raises(GraphError, match="'b'"):
        evaluate(wrong, feeds())
    narrow = (Parameter("w", TensorType(F, (5, 3)), NORMAL), graph.parameters[1])
    with pytest.raises(ShapeError, match=r"inner dimensions differ: 4 .* and 5"):
        evaluate(Graph(graph.name, graph.inputs, narrow, graph.nodes, graph.outputs, graph.constants), feeds())
