"""Types of all values of a graph."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_strategies import examples
from sample_graphs import floats, ints, lenet, line, mlp, node, normalized_mlp, scalar, tensor, weight
from weft_graph.check import check
from weft_graph.convert import convert
from weft_graph.errors import DTypeError, GraphError, ShapeError
from weft_graph.infer import infer, infer_program
from weft_graph.ir import Constant, Graph, Input, Subgraph
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.schema import schemas
from weft_graph.types import DType


def test_a_lenet_has_the_shapes_of_the_paper() -> None:
    """LeCun et al. 1998, figure 2: C1 6@28x28, S2 6@14x14, C3 16@10x10, S4 16@5x5."""
    types = infer(lenet())
    assert [str(types[name]) for name in ("c1", "p1", "c2", "p2", "flat", "scores", "loss")] == [
        "float32[batch, 6, 28, 28]",
        "float32[batch, 6, 14, 14]",
        "float32[batch, 16, 10, 10]",
        "float32[batch, 16, 5, 5]",
        "float32[batch, 400]",
        "float32[batch, 10]",
        "float32[]",
    ]


@pytest.mark.parametrize("graph", [mlp(), normalized_mlp(), lenet()], ids=lambda graph: graph.name)
def test_bound_dimensions_make_every_type_static_and_agree_with_binding_afterwards(graph: Graph) -> None:
    symbolic, bound = infer(graph), infer(graph, {"batch": 32})
    assert all(type_.is_static for type_ in bound.values())
    assert {name: type_.bind({"batch": 32}) for name, type_ in symbolic.items()} == dict(bound)


@pytest.mark.parametrize("graph", [mlp(), normalized_mlp(), lenet()], ids=lambda graph: graph.name)
def test_a_program_is_inferred_as_its_own_types_say(graph: Graph) -> None:
    programs = convert(graph, loss="loss", metrics={"accuracy": "accuracy"})
    for program in (programs.train, programs.evaluate):
        assert dict(infer_program(program, {})) == dict(program.types)
        bound = infer_program(program, {"batch": 7})
        assert dict(bound) == {name: type_.bind({"batch": 7}) for name, type_ in program.types.items()}


def test_the_order_of_nodes_does_not_matter() -> None:
    assert infer(replace(lenet(), nodes=lenet().nodes[::-1])) == infer(lenet())


def test_a_product_of_dimensions_is_bound_too() -> None:
    types = infer(line([node("Flatten", ["x"], ["loss"], axis=0)], inputs={"x": floats("batch", 4)}))
    assert types["loss"].shape == (1, "4*batch")
    assert types["loss"].bind({"batch": 3}).shape == (1, 12)


def test_a_shape_error_names_the_node_and_shows_both_sides() -> None:
    graph = line([node("Relu", ["x"], ["y"]), node("MatMul", ["y", "w"], ["loss"], "fc1")], [weight("w", 5, 2)])
    with pytest.raises(ShapeError) as caught:
        infer(graph)
    assert caught.value.node == "fc1"
    assert caught.value.pointer == "/nodes/1"
    assert "node 'fc1' (MatMul)" in caught.value.message
    assert "y is float32[batch, 4], w is float32[5, 2]" in caught.value.message


def test_the_pointer_is_the_place_in_the_graph_as_it_was_given() -> None:
    graph = line([node("MatMul", ["y", "w"], ["loss"]), node("Relu", ["x"], ["y"])], [weight("w", 5, 2)])
    with pytest.raises(ShapeError) as caught:
        infer(graph)
    assert caught.value.pointer == "/nodes/0"


def test_an_element_type_that_the_operator_does_not_take_is_refused_at_the_input() -> None:
    graph = line([node("Add", ["x", "b"], ["loss"])], inputs={"x": floats(2), "b": tensor(DType.BOOL, 2)})
    with pytest.raises(DTypeError, match="input 'B' is bool, and takes bfloat16, float16") as caught:
        infer(graph)
    assert caught.value.pointer == "/nodes/0/inputs/1"
    assert caught.value.node == "n_loss"


def test_bound_dimensions_that_do_not_fit_are_refused() -> None:
    graph = line([node("Add", ["x", "y"], ["loss"])], inputs={"x": floats("batch"), "y": floats("batch")})
    assert infer(graph, {"batch": 3})["loss"] == floats(3)
    graph = line([node("Reshape", ["x", "s"], ["loss"])], constants=[ints("s", -1, 8)])
    assert infer(graph, {"batch": 4})["loss"] == floats(2, 8)
    with pytest.raises(ShapeError, match="n_loss"):
        infer(graph, {"batch": 3})


def test_a_shape_may_be_computed_from_constants() -> None:
    """As exporters write it: shape = Concat(Unsqueeze(6 / 2 - 1), [-1])."""
    nodes = [
        node("Div", ["six", "two"], ["three"]),
        node("Sub", ["three", "one"], ["count"]),
        node("Unsqueeze", ["count", "axis"], ["rows"]),
        node("Concat", ["rows", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["loss"]),
    ]
    numbers = [scalar("six", 6, "int64"), scalar("two", 2, "int64"), scalar("one", 1, "int64")]
    graph = line(nodes, constants=[*numbers, ints("axis", 0), ints("rest", -1)], inputs={"x": floats(4, 3)})
    check(graph)
    assert infer(graph)["loss"] == floats(2, 6)


@pytest.mark.parametrize("kind", ["numbers", "names"])
def test_types_that_grow_without_end_are_refused(kind: str) -> None:
    """An outer product squares the number of elements, so a few dozen nodes would make numbers of many megabytes."""
    nodes, value = [], "x"
    for level in range(40):
        nodes += [
            node("Reshape", [value, "column"], [f"c{level}"]),
            node("Reshape", [value, "row"], [f"r{level}"]),
            node("MatMul", [f"c{level}", f"r{level}"], [f"m{level}"]),
        ]
        value = f"m{level}"
    inputs = {"x": floats(10) if kind == "numbers" else floats("batch")}
    graph = line(nodes, inputs=inputs, constants=[ints("column", -1, 1), ints("row", 1, -1)], outputs=[value])
    with pytest.raises(ShapeError, match="elements" if kind == "numbers" else "more than 64 names"):
        infer(graph)


def test_a_rank_beyond_the_limit_is_refused() -> None:
    values = ["x", *(f"u{level}" for level in range(PROGRAM_LIMITS.rank + 1))]
    nodes = [node("Unsqueeze", [a, "axis"], [b]) for a, b in pairwise(values)]
    with pytest.raises(ShapeError, match="17 dimensions, and at most 16"):
        infer(line(nodes, constants=[ints("axis", 0)], outputs=[values[-1]]))


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, "batch"]), max_size=5)
OPERATORS = sorted(op_type for domain, op_type in schemas() if not domain)


@st.composite
def one_node_graphs(draw: st.DrawFn) -> Graph:
    """Any operator on inputs and constants of any type, with any attributes of the right kind."""
    schema = schemas()["", draw(st.sampled_from(OPERATORS))]
    names, inputs, constants = [], [], []
    for index in range(draw(st.integers(min(1, len(schema.inputs)), len(schema.inputs)))):
        name = f"v{index}"
        names.append(draw(st.sampled_from([name, name, name, "v0"])) if index else name)
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        dtype = draw(st.sampled_from(sorted(formal.dtypes)))
        if draw(st.booleans()):
            shape = draw(st.lists(st.integers(0, 3), max_size=3))
            numbers = draw(st.lists(st.integers(-9, 9), min_size=27, max_size=27))
            array = np.resize(np.array(numbers), shape).astype(dtype.numpy)
            constants.append(Constant(name, array))
        else:
            inputs.append(Input(name, tensor(dtype, *draw(SHAPES))))
    values = {
        int: st.one_of(st.integers(-9, 20), st.just(1 << 62)),
        float: st.floats(-9, 9),
        str: st.sampled_from(["mean", "sum", "none", "SAME_UPPER", "VALID", "odd"]),
        bool: st.booleans(),
        tuple: st.lists(st.one_of(st.integers(-3, 5), st.just(1 << 62)), max_size=6).map(tuple),
        Subgraph: st.sampled_from([Subgraph((), (), (), ()), Subgraph(("x",), (), (), ("x",))]),
    }
    attributes = {name: draw(values[formal.kind]) for name, formal in schema.attributes.items() if draw(st.booleans())}
    outputs = [f"out{index}" for index in range(draw(st.integers(1, len(schema.outputs))))]
    return Graph(
        "one", tuple(inputs), (), (node(schema.op_type, names, outputs, **attributes),), ("out0",), tuple(constants)
    )


@examples(300)
@given(one_node_graphs())
def test_no_legal_graph_makes_inference_fail_with_anything_but_a_graph_error(graph: Graph) -> None:
    try:
        check(graph)
        types = infer(graph)
    except GraphError:
        return
    assert all(isinstance(dim, str) or dim >= 0 for type_ in types.values() for dim in type_.shape)
