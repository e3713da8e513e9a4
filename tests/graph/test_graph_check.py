"""What is not a legal graph is refused, with a pointer and both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from graph_strategies import examples, graphs
from sample_graphs import ZERO, floats, lenet, line, mlp, node, normalized_mlp, tensor, weight
from weft_graph.check import check, problems
from weft_graph.errors import DTypeError, GraphRefusedError, UnknownOperatorError
from weft_graph.ir import WEFT_DOMAIN, Constant, Graph, Initializer, Node, Parameter
from weft_graph.types import DType

RELU = node("Relu", ["x"], ["loss"])


@pytest.mark.parametrize("graph", [mlp(), normalized_mlp(), lenet()], ids=lambda graph: graph.name)
def test_legal_graphs_pass(graph: Graph) -> None:
    assert list(problems(graph)) == []
    check(graph)


def parameter(**changes: object) -> Graph:
    return line([RELU], [replace(weight("w", 2), **changes)])  # type: ignore[arg-type]  # changes are per test


CASES: list[tuple[Graph, str, str, type[GraphRefusedError]]] = [
    (line([RELU, node("Relu", ["x"], ["x"])]), "/nodes/1/outputs/0", "value 'x' at", GraphRefusedError),
    (line([RELU, node("Relu", ["x"], ["y"], "n_loss")]), "/nodes/1/name", "node 'n_loss' at", GraphRefusedError),
    (line([RELU], inputs={"": floats(), "x": floats(2)}), "/inputs/0/name", "is empty", GraphRefusedError),
    (line([node("Relu", ["x"], ["weft.y"]), RELU]), "/nodes/0/outputs/0", "are the converter's", GraphRefusedError),
    (line([node("Relu", ["x"], ["loss"], "weft.n")]), "/nodes/0/name", "are the converter's", GraphRefusedError),
    (line([RELU], inputs={"x": floats("4*b")}), "/inputs/0/shape/0", "'4*b' is no name", GraphRefusedError),
    (line([RELU], inputs={"x": floats(1, "3")}), "/inputs/0/shape/1", "'3' is no name", GraphRefusedError),
    (parameter(type=floats("n")), "/parameters/0/shape", "dimensions are numbers", GraphRefusedError),
    (parameter(type=floats(2, 0)), "/parameters/0/shape", "at least one element", GraphRefusedError),
    (parameter(type=tensor(DType.INT32, 2)), "/parameters/0/dtype", "elements are float16", DTypeError),
    (
        parameter(initializer=Initializer("Glorot")),
        "/parameters/0/initializer",
        "no initializer 'Glorot'",
        GraphRefusedError,
    ),
    (
        parameter(initializer=Initializer("RandomUniform", {"low": 0})),
        "/parameters/0/initializer",
        "takes low and high, given low",
        GraphRefusedError,
    ),
    (
        parameter(initializer=Initializer("RandomUniform", {"low": 1, "high": 0})),
        "/parameters/0/initializer",
        "low 1 above high 0",
        GraphRefusedError,
    ),
    (
        parameter(initializer=Initializer("RandomNormal", {"mean": 0, "scale": -1})),
        "/parameters/0/initializer",
        "negative scale -1",
        GraphRefusedError,
    ),
    (
        parameter(initializer=Initializer("ConstantOfShape", {"value": float("nan")})),
        "/parameters/0/initializer",
        "finite",
        GraphRefusedError,
    ),
    (line([RELU], constants=[Constant("c", np.zeros(1, complex))]), "/constants/0", "complex128", DTypeError),
    (line([node("Frobnicate", ["x"], ["loss"])]), "/nodes/0/op_type", "no operator 'Frobnicate'", UnknownOperatorError),
    (
        line([Node("Send", "s", ("x",), (), {}, WEFT_DOMAIN), RELU]),
        "/nodes/0/domain",
        "domain 'weft' are the converter's",
        UnknownOperatorError,
    ),
    (line([node("Relu", ["x", "x"], ["loss"])]), "/nodes/0/inputs/1", "1 inputs at most, given 2", GraphRefusedError),
    (line([node("Add", ["x"], ["loss"])]), "/nodes/0/inputs", "input 'B' is missing; given 1", GraphRefusedError),
    (line([node("Add", ["", "x"], ["loss"])]), "/nodes/0/inputs/0", "input 'A' is left out", GraphRefusedError),
    (line([node("Concat", [], ["loss"], axis=0)]), "/nodes/0/inputs", "is missing; given 0", GraphRefusedError),
    (line([node("Relu", ["x"], ["loss", "y"])]), "/nodes/0/outputs/1", "1 outputs at most", GraphRefusedError),
    (line([node("Relu", ["x"], [""]), RELU]), "/nodes/0/outputs/0", "left out", GraphRefusedError),
    (
        line([node("Relu", ["x"], ["loss"], slope=1)]),
        "/nodes/0/attributes/slope",
        "no attribute 'slope'",
        GraphRefusedError,
    ),
    (line([node("Concat", ["x"], ["loss"])]), "/nodes/0/attributes", "'axis' is missing", GraphRefusedError),
    (
        line([node("Flatten", ["x"], ["loss"], axis=1.0)]),
        "/nodes/0/attributes/axis",
        "kind int, given float 1.0",
        GraphRefusedError,
    ),
    (
        line([node("Flatten", ["x"], ["loss"], axis=True)]),
        "/nodes/0/attributes/axis",
        "given bool true",
        GraphRefusedError,
    ),
    (
        line([node("Transpose", ["x"], ["loss"], perm=(1, "0"))]),  # type: ignore[arg-type]  # what JSON cannot say, an SDK may
        "/nodes/0/attributes/perm",
        "kind tuple of ints",
        GraphRefusedError,
    ),
    (
        line([node("Gemm", ["x", "x"], ["loss"], alpha=float("inf"))]),
        "/nodes/0/attributes/alpha",
        "not finite",
        GraphRefusedError,
    ),
    (line([node("Add", ["x", "ghost"], ["loss"])]), "/nodes/0/inputs/1", "reads 'ghost'", GraphRefusedError),
    (line([RELU], outputs=[]), "/outputs", "no output", GraphRefusedError),
    (line([RELU], outputs=["loss", "ghost"]), "/outputs/1", "output 'ghost'", GraphRefusedError),
    (line([node("Add", ["x", "loss"], ["loss"])]), "/nodes/0", "'n_loss' -> 'n_loss'", GraphRefusedError),
]


@pytest.mark.parametrize(("graph", "pointer", "message", "error"), CASES, ids=[f"{c[1]} {c[2]}" for c in CASES])
def test_a_refusal_has_a_pointer_and_says_both_sides(
    graph: Graph, pointer: str, message: str, error: type[GraphRefusedError]
) -> None:
    with pytest.raises(error) as caught:
        check(graph)
    assert caught.value.pointer == pointer
    assert message in caught.value.message


def test_every_problem_is_found() -> None:
    graph = line(
        [node("Frobnicate", ["x"], ["y"]), node("Add", ["y"], ["loss"]), node("Relu", ["ghost"], ["z"])],
        [Parameter("w", floats(0), ZERO)],
        outputs=["loss", "nothing"],
    )
    assert [problem.pointer for problem in problems(graph)] == [
        "/parameters/0/shape",
        "/nodes/0/op_type",
        "/nodes/1/inputs",
        "/nodes/2/inputs/0",
        "/outputs/1",
    ]


@examples()
@given(graphs())
def test_any_well_formed_graph_is_judged(graph: Graph) -> None:
    """A rule stands on its own: what another one refuses does not break it."""
    for problem in problems(graph):
        assert isinstance(problem, GraphRefusedError)
        assert problem.message
