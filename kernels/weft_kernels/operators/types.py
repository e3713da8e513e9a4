"""Types of elements: casts, and bits read as another type."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_int, as_str
from weft_graph.formals import FLOATS8, NARROW, SUB_BYTES
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.types import DType
from weft_kernels.arguments import required
from weft_kernels.element_types import range_of
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel

# --- Numbers of one element type as another, as ONNX's Cast says it: rounded to the nearest, ties to even -------------


_EXPONENT_BIAS: Final = 127
_NO_NUMBER: Final = 255
"""float8_e8m0's NaN; its other bytes are exponents of 2, higher by the bias."""


def cast(xp: Any, data: Array, dtype: DType, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """The elements as `dtype`; the array itself where it has it already.

    `saturate` is for float8: what is out of range becomes the largest number, else NaN or infinity. `round_mode` is for
    float8_e8m0, whose numbers are powers of 2. Integers that do not fit lose their upper bits.
    """
    source = DType(data.dtype.name)
    if source is dtype:
        return data
    if source in NARROW:
        data = data.astype(xp.int8 if source in SUB_BYTES and source is not DType.FLOAT4E2M1 else xp.float32)
    if dtype is DType.BOOL:
        return data != 0  # type: ignore[no-any-return]  # NumPy compares to Any
    if dtype in NARROW:
        return _narrowed(xp, data, dtype, saturate=saturate, round_mode=round_mode)
    if dtype is DType.BFLOAT16 and data.dtype == np.float64:
        data = _rounded_to_odd(xp, data)
    return data.astype(dtype.numpy)


def bit_cast(data: Array, dtype: DType) -> Array:
    """The same bits as another type of as many; the elements of types below one byte are a byte's low bits."""
    source = DType(data.dtype.name)
    if dtype is DType.BOOL:
        return data.view(np.uint8) != 0  # type: ignore[no-any-return]  # NumPy compares to Any
    if dtype in SUB_BYTES and source in SUB_BYTES:
        unsigned = data.view(np.uint8) & np.uint8((1 << dtype.bits) - 1)
        return unsigned.view(dtype.numpy)
    return data.view(dtype.numpy)


def _narrowed(xp: Any, data: Array, dtype: DType, *, saturate: bool, round_mode: str) -> Array:
    if dtype is DType.FLOAT8E8M0:
        return _power_of_two(xp, data, saturate=saturate, round_mode=round_mode)
    if dtype in FLOATS8 or dtype is DType.FLOAT4E2M1:
        wide = _rounded_to_odd(xp, data.astype(xp.float64)) if data.dtype.itemsize > 2 else data.astype(xp.float32)
        narrow = wide.astype(dtype.numpy)
        if not saturate or dtype is DType.FLOAT4E2M1:
            return narrow
        # What is no number now and was one before was out of range.
        lost = ~xp.isfinite(narrow.astype(xp.float32)) & ~xp.isnan(wide)
        largest = xp.copysign(xp.float32(range_of(dtype)[1]), wide).astype(dtype.numpy)
        return xp.where(lost, largest, narrow)  # type: ignore[no-any-return]  # xp is Any
    whole = data.astype(xp.int64) if data.dtype.kind not in "iub" else data
    # The low bits, with a sign where the type has one.
    mask = (1 << dtype.bits) - 1
    return (whole.astype(xp.int64) & mask).astype(xp.uint8).view(dtype.numpy)


def _power_of_two(xp: Any, data: Array, *, saturate: bool, round_mode: str) -> Array:
    """float8_e8m0: the power of 2 above (`up`), below (`down`) or nearest, of two the one above."""
    wide = data.astype(xp.float64, copy=False)
    # wide is mantissa * 2^exponent, and the mantissa is in [1/2, 1).
    mantissa, exponent = xp.frexp(wide)
    raised = {"up": mantissa > 0.5, "down": mantissa < 0, "nearest": mantissa >= 0.75}[round_mode]
    code = exponent.astype(xp.int64) - 1 + raised + _EXPONENT_BIAS
    if saturate:
        code = xp.clip(code, 0, _NO_NUMBER - 1)
        code = xp.where(wide == 0, 0, xp.where(xp.isinf(wide), _NO_NUMBER - 1, code))
        missing = xp.isnan(wide) | (wide < 0)
    else:
        missing = ~xp.isfinite(wide) | (wide <= 0) | (code < 0) | (code >= _NO_NUMBER)
    return (  # type: ignore[no-any-return]  # xp is Any
        xp.where(missing, _NO_NUMBER, code).astype(xp.uint8).view(DType.FLOAT8E8M0.numpy)
    )


def _rounded_to_odd(xp: Any, data: Array) -> Array:
    """float64 as float32, what is lost kept in the last bit: a later rounding to fewer bits is that of the float64."""
    near = data.astype(xp.float32)
    back = near.astype(xp.float64)
    is_above = xp.abs(back) > xp.abs(data)
    below = xp.where(is_above, xp.nextafter(near, xp.float32(0)), near)
    inexact = xp.isfinite(data) & (back != data)
    return (below.view(xp.uint32) | inexact.astype(xp.uint32)).view(xp.float32)  # type: ignore[no-any-return]  # xp is Any


@kernel("Cast")
def cast_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The elements as another type; the array itself where it has it already."""
    (data,) = required(inputs)
    dtype, saturate = DTYPE_OF_NUMBER[as_int(attributes["to"])], bool(as_int(attributes["saturate"]))
    return (cast(context.xp, data, dtype, saturate=saturate, round_mode=as_str(attributes["round_mode"])),)


@kernel("CastLike")
def cast_like(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The elements as the type of another array."""
    data, target = required(inputs)
    dtype, saturate = DType(target.dtype.name), bool(as_int(attributes["saturate"]))
    return (cast(context.xp, data, dtype, saturate=saturate, round_mode=as_str(attributes["round_mode"])),)


@kernel("BitCast")
def bit_cast_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The same bits as another type."""
    (data,) = required(inputs)
    return (bit_cast(data, DTYPE_OF_NUMBER[as_int(attributes["to"])]),)
