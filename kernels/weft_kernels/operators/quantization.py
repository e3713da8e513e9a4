"""Quantized numbers, and products of integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS8, INTEGERS, SUB_BYTES
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.shapes.quantizing import scale_axis
from weft_graph.types import DType
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import range_of
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.operators.types import cast
from weft_kernels.windows import convolved

# --- Quantized numbers: scales beside their data, what is outside a narrow type, exact sums of products of bytes ------


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


_DIVIDED_IN = {"int32": DType.FLOAT64, "float8_e8m0fnu": DType.FLOAT32}
"""Where the scale's own type has no division."""


@kernel("QuantizeLinear")
def quantize_linear(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Quotients by a scale, rounded to a narrow type."""
    xp = context.xp
    data, scale = required(inputs, 2)
    zero_point, axis, block = optional(inputs, 2), as_int(attributes["axis"]), as_int(attributes["block_size"])
    asked, precision = as_int(attributes["output_dtype"]), as_int(attributes["precision"])
    dtype = DTYPE_OF_NUMBER[asked] if asked else DType.UINT8 if zero_point is None else DType(zero_point.dtype.name)
    divided_in = DTYPE_OF_NUMBER[precision] if precision else _DIVIDED_IN.get(scale.dtype.name, DType(scale.dtype.name))
    divisor = beside_data(xp, scale.astype(divided_in.numpy, copy=False), data.shape, axis, block)
    ratio = xp.divide(data.astype(divided_in.numpy, copy=False), divisor)
    offset = None if zero_point is None else beside_data(xp, zero_point, data.shape, axis, block)
    return (quantized(xp, ratio, offset, dtype, saturate=bool(as_int(attributes["saturate"]))),)


@kernel("DequantizeLinear")
def dequantize_linear(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Differences from a zero point, times a scale."""
    xp = context.xp
    data, scale = required(inputs, 2)
    zero_point, axis, block = optional(inputs, 2), as_int(attributes["axis"]), as_int(attributes["block_size"])
    asked = as_int(attributes["output_dtype"])
    dtype = DTYPE_OF_NUMBER[asked].numpy if asked else scale.dtype
    wide = xp.float64 if dtype == np.float64 else xp.float32
    offset = None if zero_point is None else beside_data(xp, zero_point, data.shape, axis, block)
    factor = beside_data(xp, scale.astype(wide), data.shape, axis, block)
    return ((less(xp, data, offset).astype(wide) * factor).astype(dtype, copy=False),)


@kernel("DynamicQuantizeLinear")
def dynamic_quantize_linear(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Bytes, by the range of the elements."""
    xp = context.xp
    (data,) = required(inputs)
    zero = xp.zeros((), dtype=data.dtype)
    low, high = (xp.minimum(data.min(), zero), xp.maximum(data.max(), zero)) if data.size else (zero, zero)
    scale = (high - low) / data.dtype.type(255)
    scale = xp.where(scale == 0, data.dtype.type(1), scale)
    zero_point = quantized(xp, -low / scale, None, DType.UINT8)
    return quantized(xp, data / scale, zero_point, DType.UINT8), scale, zero_point


@kernel("ConvInteger")
def conv_integer(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The convolution of bytes less their zero points."""
    xp = context.xp
    data, weights = required(inputs, 2)
    zero_point, weights_zero = optional(inputs, 2), optional(inputs, 3)
    if weights_zero is not None:
        weights_zero = weights_zero.reshape(-1, *(1,) * (weights.ndim - 1))
    wide = less(xp, data, None if zero_point is None else zero_point.reshape(())).astype(xp.float64)
    result = convolved(xp, wide, less(xp, weights, weights_zero).astype(xp.float64), attributes)
    return (result.astype(xp.int64).astype(xp.int32),)


@kernel("MatMulInteger")
def matmul_integer(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The product of bytes less their zero points."""
    xp = context.xp
    left, right = required(inputs, 2)
    left_zero, right_zero = optional(inputs, 2), optional(inputs, 3)
    product = exact_product(
        xp,
        less(xp, left, None if left_zero is None else by_operand(left_zero, left.ndim, by_row=True)),
        less(xp, right, None if right_zero is None else by_operand(right_zero, right.ndim, by_row=False)),
    )
    return (product.astype(xp.int64).astype(xp.int32),)


@kernel("QLinearConv")
def qlinear_conv(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The convolution of quantized numbers, quantized."""
    xp = context.xp
    data, data_scale, data_zero, weights, weights_scale, weights_zero, scale, zero_point = required(inputs, 8)
    kernel = less(xp, weights, weights_zero.reshape(-1, *(1,) * (weights.ndim - 1))).astype(xp.float64)
    result = convolved(xp, less(xp, data, data_zero.reshape(())).astype(xp.float64), kernel, attributes)
    by_feature = (-1, *(1,) * (result.ndim - 2))
    bias = optional(inputs, 8)
    if bias is not None:
        result = result + bias.reshape(by_feature)
    factor = data_scale.astype(xp.float64).reshape(()) * weights_scale.astype(xp.float64).reshape(by_feature)
    ratio = result * (factor / scale.astype(xp.float64).reshape(()))
    return (quantized(xp, ratio, zero_point.reshape(()), DType(zero_point.dtype.name)),)


@kernel("QLinearMatMul")
def qlinear_matmul(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The product of quantized matrices, quantized."""
    xp = context.xp
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero_point = required(inputs)
    product = exact_product(
        xp,
        less(xp, left, by_operand(left_zero, left.ndim, by_row=True)),
        less(xp, right, by_operand(right_zero, right.ndim, by_row=False)),
    )
    by_row = by_operand(left_scale, left.ndim, by_row=True).astype(xp.float64)
    by_column = by_operand(right_scale, right.ndim, by_row=False).astype(xp.float64)
    ratio = product * by_row * by_column / scale.astype(xp.float64).reshape(())
    return (quantized(xp, ratio, zero_point.reshape(()), DType(zero_point.dtype.name)),)
