"""Casts to and from every element type, against tables and against arithmetic written out here."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft_graph.errors import DTypeError
from weft_graph.infer import infer
from weft_graph.ir import Graph, Input, Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.types import DType, TensorType
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node

NAN, INF = float("nan"), float("inf")
FLOATS8 = [DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ]


def _cast(array: Any, to: DType, **attributes: Any) -> Any:
    node = Node("Cast", "cast", ("x",), ("y",), {"to": NUMBER_OF_DTYPE[to], **attributes})
    (made,) = run_node(KernelContext("cast"), node, [array])
    like = Node("CastLike", "like", ("x", "t"), ("y",), attributes)
    (alike,) = run_node(KernelContext("like"), like, [array, np.zeros(2, to.numpy)])
    assert made.dtype == alike.dtype == to.numpy
    assert made.tobytes() == alike.tobytes()
    return made


@pytest.mark.parametrize(("source", "to"), list(itertools.product(DType, DType)))
def test_small_numbers_survive_every_cast(source: DType, to: DType) -> None:
    """1 is a number of every type, and so is 0 of all but float8_e8m0."""
    numbers = [1] if DType.FLOAT8E8M0 in {source, to} else [0, 1]
    given = np.array(numbers, np.float32).astype(np.int8 if "int" in source else np.float32).astype(source.numpy)
    assert _cast(given, to).astype(np.float32).tolist() == numbers


LARGEST = {"float8_e4m3fn": 448, "float8_e4m3fnuz": 240, "float8_e5m2": 57344, "float8_e5m2fnuz": 57344}


@pytest.mark.parametrize("to", FLOATS8)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_what_float8_cannot_hold(source: str, to: DType) -> None:
    """The two tables of Cast: with saturation the largest number, without it NaN, or infinity where the type has it."""
    given = np.array([0.0, -0.0, NAN, INF, -INF, 65000.0, -65000.0], source)
    most = LARGEST[to]
    np.testing.assert_array_equal(
        _cast(given, to).astype(np.float32), np.array([0, 0, NAN, most, -most, most, -most], np.float32)
    )
    beyond = INF if to is DType.FLOAT8E5M2 else NAN
    np.testing.assert_array_equal(
        _cast(given, to, saturate=0).astype(np.float32),
        np.array([0, 0, NAN, beyond, -beyond, beyond, -beyond], np.float32),
    )
    has_negative_zero = not to.endswith("fnuz")
    assert np.signbit(_cast(given, to).astype(np.float32)[1]) == has_negative_zero


@pytest.mark.parametrize("to", [*FLOATS8, DType.FLOAT4E2M1, DType.BFLOAT16])
def test_float64_is_rounded_once(to: DType) -> None:
    """A number just above the middle of two goes up, also where float32 would have called it the middle."""
    both = np.array([1.0], to.numpy)
    above = (both.view(np.uint16 if to is DType.BFLOAT16 else np.uint8) + 1).view(to.numpy).astype(np.float64)
    middle = (1 + above) / 2
    assert _cast(middle * (1 + 2**-40), to).astype(np.float64) == above
    assert _cast(middle * (1 - 2**-40), to).astype(np.float64) == 1
    assert _cast(-middle * (1 + 2**-40), to).astype(np.float64) == -above


@pytest.mark.parametrize("to", [DType.INT8, DType.UINT8, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2, DType.INT16])
def test_integers_lose_their_upper_bits(to: DType) -> None:
    given = np.arange(-300, 300)
    bits, signed = to.bits, to.startswith("int")
    expected = given & ((1 << bits) - 1)
    if signed:
        expected = np.where(expected >= 1 << (bits - 1), expected - (1 << bits), expected)
    assert _cast(given, to).astype(np.int64).tolist() == expected.tolist()
    assert _cast(given.astype(np.int16), to).astype(np.int64).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("up", [1, 2, 2, 2, 4, 2.0**-127, 2.0**127]),
        ("down", [1, 1, 1, 1, 2, 2.0**-127, 2.0**127]),
        ("nearest", [1, 1, 2, 2, 4, 2.0**-127, 2.0**127]),
    ],
)
def test_powers_of_two_are_rounded_as_asked(mode: str, expected: list[float]) -> None:
    given = np.array([1.0, 1.25, 1.5, 1.75, 3.5, 2.0**-140, INF])
    made = _cast(given, DType.FLOAT8E8M0, round_mode=mode).astype(np.float64)
    assert made.tolist() == expected


def test_without_saturation_powers_of_two_end_in_nan() -> None:
    given = np.array([0.0, NAN, INF, 2.0**130, 2.0**-140, -1.0, 3.0])
    made = _cast(given, DType.FLOAT8E8M0, round_mode="nearest", saturate=0).astype(np.float64)
    np.testing.assert_array_equal(made, [NAN, NAN, NAN, NAN, NAN, NAN, 4.0])


def test_every_byte_of_float8_is_read_as_ml_dtypes_reads_it() -> None:
    for dtype in (*FLOATS8, DType.FLOAT8E8M0):
        every = np.arange(256, dtype=np.uint8).view(dtype.numpy)
        np.testing.assert_array_equal(_cast(every, DType.FLOAT32), every.astype(np.float32))


@pytest.mark.parametrize(
    ("source", "to"),
    [(a, b) for a, b in itertools.product(DType, DType) if a.bits == b.bits and DType.BOOL not in (a, b)],
)
def test_bits_come_back(source: DType, to: DType) -> None:
    """Every pattern of 8 bits and fewer, and a thousand of more, in rows that are not neighbours."""
    size = source.itemsize
    raw = np.random.default_rng(3).integers(0, 256, (64, 4, size), dtype=np.uint8)
    if source.bits < 8:
        raw &= (1 << source.bits) - 1
    array = raw.reshape(64, 4 * size).view(source.numpy)[::2]
    there = Node("BitCast", "there", ("x",), ("y",), {"to": NUMBER_OF_DTYPE[to]})
    back = Node("BitCast", "back", ("y",), ("z",), {"to": NUMBER_OF_DTYPE[source]})
    (middle,) = run_node(KernelContext(""), there, [array])
    (result,) = run_node(KernelContext(""), back, [middle])
    assert middle.dtype == to.numpy
    assert result.tobytes() == np.ascontiguousarray(array).tobytes()


def test_a_bool_is_a_byte_that_is_not_zero() -> None:
    node = Node("BitCast", "node", ("x",), ("y",), {"to": NUMBER_OF_DTYPE[DType.BOOL]})
    (made,) = run_node(KernelContext(""), node, [np.array([0, 1, 2, 255], np.uint8)])
    assert made.view(np.uint8).tolist() == [0, 1, 1, 1]


def _types(node: Node, type_: TensorType) -> Any:
    return infer(Graph("g", (Input("x", type_),), (), (node,), node.outputs, ()))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node("Cast", "n", ("x",), ("y",), {"to": 8}), "to is element type 8"),
        (Node("Cast", "n", ("x",), ("y",), {"to": 1, "round_mode": "sideways"}), "sideways"),
        (Node("BitCast", "n", ("x",), ("y",), {"to": NUMBER_OF_DTYPE[DType.FLOAT16]}), "32 bits and float16 16"),
    ],
)
def test_what_cannot_be_cast_is_refused_by_name(node: Node, message: str) -> None:
    with pytest.raises(DTypeError, match=message) as caught:
        _types(node, TensorType(DType.FLOAT32, (2,)))
    assert "'n'" in str(caught.value)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_by_any_number_of_places(dtype: str, direction: str) -> None:
    """Against Python's integers, which have no last bit; also by places below 0 and beyond the type."""
    bits = np.dtype(dtype).itemsize * 8
    limits = ml_dtypes.iinfo(dtype)
    numbers = np.array([int(limits.min), int(limits.max), 1, 5, int(limits.max) // 3], dtype)
    places = np.array([p for p in (-3, 0, 1, 7, bits - 1, bits, 100) if p >= int(limits.min)], dtype)
    node = Node("BitShift", "node", ("x", "y"), ("z",), {"direction": direction})
    (made,) = run_node(KernelContext(""), node, [numbers[:, None], places])
    for row, number in enumerate(numbers.tolist()):
        for column, asked in enumerate(places.tolist()):
            count = bits if asked < 0 else asked
            wide = number << count if direction == "LEFT" else number >> min(count, bits)
            low = wide & ((1 << bits) - 1)
            wrapped = low - (1 << bits) if int(limits.min) < 0 and low >> (bits - 1) else low
            assert int(made[row, column]) == wrapped, (number, count)
