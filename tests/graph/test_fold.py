"""Arithmetic that is known before any step, against NumPy and C's rule for division."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_strategies import examples
from sample_graphs import node, tensor
from weft_graph.folding import MAX_ELEMENTS, fold, fold_type
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Input
from weft_graph.types import DType, array_type

small = st.integers(-1000, 1000)


def int64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@examples()
@given(small, small.filter(bool))
def test_division_rounds_towards_zero(dividend: int, divisor: int) -> None:
    result = fold(node("Div", ["a", "b"], ["c"]), [int64(dividend), int64(divisor)], tensor(DType.INT64, 1))
    assert result is not None
    assert result.tolist() == [math.trunc(dividend / divisor)]


def test_division_by_zero_is_unknown() -> None:
    assert fold(node("Div", ["a", "b"], ["c"]), [int64(4, 4), int64(2, 0)], tensor(DType.INT64, 2)) is None


@pytest.mark.parametrize(
    ("op_type", "expected"), [("Add", [4, 7]), ("Sub", [-2, -3]), ("Mul", [3, 10])], ids=["Add", "Sub", "Mul"]
)
def test_pointwise_arithmetic(op_type: str, expected: list[int]) -> None:
    result = fold(node(op_type, ["a", "b"], ["c"]), [int64(1, 2), int64(3, 5)], tensor(DType.INT64, 2))
    assert result is not None
    assert result.tolist() == expected


def test_elements_keep_their_order_through_changes_of_shape_and_type() -> None:
    for op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"):
        source = int64(1, 2, 3, 4)
        result = fold(node(op_type, ["a"], ["b"]), [source], tensor(DType.INT32, 2, 2))
        assert result is not None
        assert result.dtype == np.int32
        assert result.tolist() == [[1, 2], [3, 4]]
        assert not result.flags.writeable
        assert source.flags.writeable


def test_concat_joins_along_its_axis() -> None:
    rows = [int64(1, 2).reshape(1, 2), int64(3, 4).reshape(1, 2)]
    result = fold(node("Concat", ["a", "b"], ["c"], axis=1), rows, tensor(DType.INT64, 1, 4))
    assert result is not None
    assert result.tolist() == [[1, 2, 3, 4]]


def test_gather_picks_along_its_axis() -> None:
    """As exporters take one dimension out of a shape."""
    table = int64(1, 2, 3, 4, 5, 6).reshape(2, 3)
    result = fold(node("Gather", ["a", "b"], ["c"], axis=1), [table, int64(-1, 0)], tensor(DType.INT64, 2, 2))
    assert result is not None
    assert result.tolist() == [[3, 1], [6, 4]]
    assert fold(node("Gather", ["a", "b"], ["c"]), [table, int64(2)], tensor(DType.INT64, 1, 3)) is None


def test_overflow_wraps_around_silently() -> None:
    largest = np.array(np.iinfo(np.int64).max)
    result = fold(node("Add", ["a", "b"], ["c"]), [largest, np.array(1)], tensor(DType.INT64))
    assert result is not None
    assert int(result) == np.iinfo(np.int64).min


def test_floats_are_computed_as_ieee_754_rounds_them() -> None:
    result = fold(node("Div", ["a", "b"], ["c"]), [np.float32([1]), np.float32([3])], tensor(DType.FLOAT32, 1))
    assert result is not None
    assert (result.dtype, result.tolist()) == (np.float32, [np.float32(1) / np.float32(3)])


@pytest.mark.parametrize(
    ("op_type", "inputs", "type_"),
    [
        ("Relu", [int64(1)], tensor(DType.INT64, 1)),
        ("Add", [int64(1), None], tensor(DType.INT64, 1)),
        ("Exp", [np.ones(1)], tensor(DType.FLOAT64, 1)),
        ("Cast", [np.array([1e30])], tensor(DType.INT64, 1)),
        ("Identity", [int64(1)], tensor(DType.INT64, "batch")),
    ],
    ids=["operator", "unknown input", "rounded by each device its own way", "no room", "symbolic"],
)
def test_what_it_does_not_know_is_unknown(op_type: str, inputs: list[np.ndarray | None], type_: object) -> None:
    assert fold(node(op_type, ["a", "b"], ["c"]), inputs, type_) is None  # type: ignore[arg-type]  # a TensorType


def test_what_is_larger_than_any_shape_is_left_to_the_kernels() -> None:
    column = np.zeros((MAX_ELEMENTS // 2 + 1, 1), dtype=np.int64)
    assert fold(node("Identity", ["a"], ["b"]), [column], array_type(column)) is not None
    result = tensor(DType.INT64, column.size, column.size)
    assert fold(node("Add", ["a", "b"], ["c"]), [column, column.T], result) is None


def test_a_slice_takes_part_of_a_shape() -> None:
    inputs = [int64(2, 3, 4, 5), int64(-1), int64(-4), int64(0), int64(-2)]
    result = fold(node("Slice", ["a", "b", "c", "d", "e"], ["f"]), inputs, tensor(DType.INT64, 2))
    assert result is not None
    assert result.tolist() == [5, 3]
    assert fold(node("Slice", ["a"], ["f"], starts=(1,), ends=(3,)), inputs[:1], tensor(DType.INT64, 2)) is None


def test_a_shape_is_known_where_its_dimensions_are_numbers() -> None:
    data = tensor(DType.FLOAT32, "batch", 3, 4)
    assert fold_type(node("Shape", ["a"], ["b"]), data) is None
    assert fold_type(node("Size", ["a"], ["b"]), data) is None
    assert fold_type(node("Relu", ["a"], ["b"]), tensor(DType.FLOAT32, 3)) is None
    tail = fold_type(node("Shape", ["a"], ["b"], start=-2), data)
    assert tail is not None
    assert tail.tolist() == [3, 4]
    size = fold_type(node("Size", ["a"], ["b"]), tensor(DType.FLOAT32, 3, 4))
    assert size is not None
    assert (size.tolist(), size.dtype) == (12, np.int64)


def test_what_is_reshaped_to_another_s_shape_has_a_known_shape() -> None:
    """As exporters write it: Shape, Slice, Concat, Reshape."""
    graph = Graph(
        name="g",
        inputs=(Input("x", tensor(DType.FLOAT32, "batch", 6)), Input("like", tensor(DType.FLOAT32, "batch", 2, 3))),
        parameters=(),
        nodes=(
            node("Shape", ["like"], ["tail"], start=1),
            node("Concat", ["rest", "tail"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["y"]),
        ),
        outputs=("y",),
        constants=(Constant("rest", int64(-1)),),
    )
    assert infer(graph)["y"].shape == ("batch", 2, 3)
