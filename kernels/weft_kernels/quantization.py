"""Quantized numbers: scales beside their data, what is outside a narrow type, exact sums of products of bytes."""

from __future__ import annotations

from typing import Any

from weft_graph.formals import FLOATS8, INTEGERS, SUB_BYTES
from weft_graph.shapes.quantizing import scale_axis
from weft_graph.types import DType
from weft_kernels.casting import cast
from weft_kernels.element_types import range_of
from weft_kernels.kernel import Array


def beside_data(xp: Any, given: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Scales or zero points as an array that broadcasts to `shape`. Raises ValueError for too few blocks."""
    if block == 0 and given.size == 1:
        return given.reshape(())
    place = scale_axis(axis, len(shape))
    if block == 0:
        return given.reshape(-1, *(1,) * (len(shape) - 1 - place))
    if -(-shape[place] // block) != given.shape[place]:
        raise ValueError(f"{given.shape[place]} blocks of {block} are not the {shape[place]} elements along {place}")
    # By places, because a narrow type can be taken from, and little else.
    return xp.take(given, xp.arange(shape[place]) // block, axis=place)  # type: ignore[no-any-return]  # xp is Any


def quantized(xp: Any, ratio: Array, zero_point: Array | None, dtype: DType, *, saturate: bool = True) -> Array:
    """`ratio`, floats, as the narrow type, moved by the zero point; integers are rounded to even first."""
    if dtype in FLOATS8 or dtype is DType.FLOAT4E2M1:
        moved = ratio if zero_point is None else ratio.astype(xp.float32) + widened(xp, zero_point)
        return cast(xp, moved, dtype, saturate=saturate)
    low, high = range_of(dtype)
    # No integer here has more than 16 bits: float32 is exact wherever the result is inside.
    whole = xp.rint(ratio).astype(xp.float32)
    if zero_point is not None:
        whole = whole + widened(xp, zero_point)
    inside = xp.minimum(xp.maximum(whole, xp.float32(low)), xp.float32(high))
    return cast(xp, xp.where(xp.isnan(inside), xp.float32(0), inside).astype(xp.int32), dtype)


def widened(xp: Any, narrow: Array) -> Array:
    """Elements of a narrow type as float32, which holds all of them but large int32 numbers."""
    return narrow.astype(xp.float32)


def less(xp: Any, data: Array, zero_point: Array | None) -> Array:
    """Quantized data less a zero point that broadcasts, exactly: int32, or float32 for types of floats."""
    dtype = DType(data.dtype.name)
    is_whole = dtype in INTEGERS or (dtype in SUB_BYTES and dtype is not DType.FLOAT4E2M1)
    wide = xp.int32 if is_whole else xp.float32
    result: Array = data.astype(wide)
    return result if zero_point is None else result - zero_point.astype(wide)


def by_operand(given: Array, rank: int, *, by_row: bool) -> Array:
    """A matrix operand's scales or zero points, shaped so that they broadcast against it."""
    if given.size == 1:
        return given.reshape(())
    return given[:, None] if by_row and given.ndim == 1 and rank > 1 else given


def exact_product(xp: Any, left: Array, right: Array) -> Array:
    """The matrix product of whole numbers of 9 bits: float64 has a fast one, and holds each of its sums."""
    return xp.matmul(left.astype(xp.float64), right.astype(xp.float64))  # type: ignore[no-any-return]  # xp is Any
