"""Every operator where shapes are known only once a step's values are: types, gradients, and what is refused then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradient_case import GradientCase
from operator_cases import BACKWARD_CASES, weighed
from weft_graph.differentiation import Differentiated, differentiate
from weft_graph.errors import GraphError, NoGradientError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Input, Node
from weft_graph.program import LOSS_SCALE
from weft_graph.topological import topological_order
from weft_graph.types import array_type
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import KernelContext
from weft_kernels.run import KernelError, run_nodes

FIRST: dict[str, GradientCase] = {}
for _case in BACKWARD_CASES.values():
    if all(array is None or array.size for array in _case.inputs):
        FIRST.setdefault(_case.op_type, _case)


def opened(graph: Graph, case: GradientCase, axes: dict[str, tuple[int, ...]]) -> Graph:
    """The graph with each named value read through Compress along these axes, which keeps all: nobody can know."""
    nodes, constants, renamed = [], list(graph.constants), {}
    arrays = {f"in{place}": array for place, array in enumerate(case.inputs) if array is not None}
    for name, along in axes.items():
        value = name
        for axis in along:
            size = arrays[name].shape[axis]
            constants.append(Constant(f"{name}_all{axis}", np.ones(size, dtype=bool)))
            made = f"{name}_open{axis}"
            nodes.append(Node("Compress", made, (value, f"{name}_all{axis}"), (made,), {"axis": axis}))
            value = made
        renamed[name] = value
    rewired = [replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs)) for node in graph.nodes]
    return replace(graph, nodes=(*nodes, *rewired), constants=tuple(constants))


def run(result: Differentiated, arrays: dict[str, Any]) -> dict[str, Any]:
    """Every value, each of which agrees with the type that was inferred."""
    values = dict(arrays)
    values.update((constant.name, constant.array) for constant in result.graph.constants)
    values[LOSS_SCALE] = np.array(0.5, dtype=result.types[LOSS_SCALE].dtype.numpy)
    nodes = topological_order(result.graph.nodes)
    made = [name for node in nodes for name in node.outputs if name]
    run_nodes(KernelContext(""), nodes, values, keep=[*values, *made], types=result.types)
    for name, array in values.items():
        assert result.types[name].agrees_with(array_type(array)), (name, str(result.types[name]), array.shape)
    return values


def gradients(graph: Graph, arrays: dict[str, Any]) -> dict[str, Any]:
    result = differentiate(graph, "loss")
    values = run(result, arrays)
    return {name: values[gradient] for name, gradient in result.gradients.items()}


def every_axis(case: GradientCase) -> dict[str, tuple[int, ...]]:
    """All axes of all inputs that are no lists known before a step."""
    places = [place for place, array in enumerate(case.inputs) if array is not None and place not in case.known]
    return {f"in{place}": tuple(range(case.inputs[place].ndim)) for place in places}  # type: ignore[union-attr]


NEEDS = {
    "Col2Im": "not whole blocks",
    "ConvTranspose": "do not fall into 1 groups",
    "DFT": "the last dimension must be 1",
    "DeformConv": "do not fall into 1 groups",
    "MaxUnpool": "spatial dimensions must be numbers",
    "STFT": "1 or 2",
    "Scan": "in one shape",
    "CausalConvWithState": "must be",
    "LinearAttention": "must be",
    "RotaryEmbedding": "cannot be turned in pairs",
}
"""What an operator must know before a step, of those that refuse a graph where every dimension is open."""


@pytest.mark.parametrize("op_type", sorted(FIRST))
def test_gradients_are_the_same_where_every_shape_is_open(op_type: str) -> None:
    case = FIRST[op_type]
    graph, arrays = weighed(case, "float32")
    wide = opened(graph, case, every_axis(case))
    if op_type in NEEDS and op_type != "Scan":
        with pytest.raises(GraphError, match=NEEDS[op_type]):
            differentiate(wide, "loss")
        return
    expected = gradients(graph, arrays)
    found = gradients(wide, arrays)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("op_type", sorted(FIRST))
def test_gradients_are_the_same_where_one_dimension_is_open(op_type: str) -> None:
    """Each on its own: what is known beside it must not be taken for more than it says."""
    case = FIRST[op_type]
    graph, arrays = weighed(case, "float32")
    expected = gradients(graph, arrays)
    tried = 0
    for name, axes in every_axis(case).items():
        for axis in axes:
            try:
                found = gradients(opened(graph, case, {name: (axis,)}), arrays)
            except (ShapeError, NoGradientError):
                assert op_type in NEEDS, (name, axis)
                continue
            tried += 1
            for parameter, array in expected.items():
                np.testing.assert_array_equal(found[parameter], array, err_msg=f"{parameter}, {name} along {axis}")
    assert tried or op_type in NEEDS or not any(every_axis(case).values())


WITH_LISTS = {name: case for name, case in BACKWARD_CASES.items() if case.known}


@pytest.mark.parametrize("name", sorted(WITH_LISTS))
def test_gradients_are_the_same_where_lists_are_known_only_in_a_step(name: str) -> None:
    """Shapes, axes, pads and counts as inputs of the graph: no operator is refused for it."""
    case = WITH_LISTS[name]
    graph, arrays = weighed(case, "float32")
    lists = tuple(Input(constant.name, array_type(constant.array)) for constant in graph.constants)
    fed = replace(graph, inputs=(*graph.inputs, *lists), constants=())
    expected, found = gradients(graph, arrays), gradients(fed, arrays)
    for parameter, array in expected.items():
        np.testing.assert_array_equal(found[parameter], array, err_msg=parameter)


def line(nodes: list[Node], inputs: dict[str, Any], outputs: tuple[str, ...]) -> Graph:
    return Graph("line", tuple(Input(n, array_type(a)) for n, a in inputs.items()), (), tuple(nodes), outputs)


@pytest.mark.parametrize(
    ("node", "inputs", "message"),
    [
        (
            Node("LayerNormalization", "norm", ("x", "open"), ("y",)),
            {"x": np.zeros((2, 1)), "open_from": np.ones(4)},
            r"float64\[4\] does not broadcast to the dimensions of float64\[2, 1\]",
        ),
        (
            Node("PRelu", "slope", ("x", "open"), ("y",)),
            {"x": np.zeros((2, 1)), "open_from": np.ones(4)},
            r"slope float64\[4\] does not broadcast to float64\[2, 1\]",
        ),
        (
            Node("OneHot", "hot", ("ids", "depth", "open"), ("y",)),
            {"ids": np.arange(3), "depth": np.array(3), "open_from": np.ones(3)},
            r"values float64\[3\] must be two numbers",
        ),
        (
            Node("MatMul", "product", ("x", "open"), ("y",)),
            {"x": np.zeros((2, 3)), "open_from": np.ones(4)},
            "inner dimensions differ: 3 of .* and 4 of",
        ),
        (
            Node("Reshape", "again", ("open", "shape"), ("y",)),
            {"open_from": np.zeros(6), "shape": np.array([4, -1])},
            r"\[6\] cannot be reshaped to \[4, -1\]",
        ),
        (
            Node("Slice", "part", ("open", "starts", "ends", "axes", "steps"), ("y",)),
            {"open_from": np.zeros(6)} | {n: np.array([0]) for n in ("starts", "ends", "axes", "steps")},
            "the step along axis 0 is 0",
        ),
        (
            Node("TopK", "best", ("open", "k"), ("y", "z")),
            {"open_from": np.zeros(3), "k": np.array([4])},
            "K is 4, and dimension 0 of .* has 3 elements",
        ),
        (
            Node("ScatterElements", "put", ("x", "i", "open"), ("y",)),
            {"x": np.zeros(3), "i": np.array([0, 1]), "open_from": np.zeros(3)},
            "must be one for each of the indices",
        ),
        (
            Node("Squeeze", "narrow", ("open",), ("y",)),
            {"open_from": np.zeros((1, 3))},
            r"'y' is float64\[3\] in this step, and before it was taken for float64\[\?c, 3\]",
        ),
        (
            Node("SoftmaxCrossEntropyLoss", "loss", ("x", "open"), ("y",)),
            {"x": np.zeros((2, 3)), "open_from": np.array([1])},
            "do not fit scores",
        ),
    ],
    ids=lambda value: value.op_type if isinstance(value, Node) else "",
)
def test_what_does_not_fit_in_a_step_is_refused_with_both_sides(
    node: Node, inputs: dict[str, Any], message: str
) -> None:
    """The graph is legal: how long `open` is follows from values."""
    given = {**inputs, "all": np.ones(inputs["open_from"].shape[0], dtype=bool)}
    graph = line([Node("Compress", "c", ("open_from", "all"), ("open",), {"axis": 0}), node], given, ("y",))
    assert infer(graph)["open"].shape[0] == "?c"
    with pytest.raises(KernelError, match=f"node '{node.name}' .*{message}"):
        evaluate(graph, given)
