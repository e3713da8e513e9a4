"""Quantized numbers, and products of integers."""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, FLOATS8, optional, required, setting
from weft_graph.operators.convolution import CONV_ATTRIBUTES
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype, dtype_attribute
from weft_graph.shapes.flops import normalized, stacked_products
from weft_graph.shapes.gradients import apply, given_attributes, incoming, refusal
from weft_graph.shapes.quantizing import check_channels, check_granularity, check_one_each, check_operand, scale_axis
from weft_graph.shapes.windows import infer_convolution, infer_product
from weft_graph.types import DType, TensorType

_WIDE = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT32})


_QUANTIZE_LINEAR_SCALES = _WIDE | {DType.FLOAT8E8M0}


QUANTIZE_LINEAR_QUANTIZED = (FLOATS8 - {DType.FLOAT8E8M0}) | {
    *(DType.INT8, DType.UINT8, DType.INT16, DType.UINT16),
    *(DType.INT4, DType.UINT4, DType.INT2, DType.UINT2, DType.FLOAT4E2M1),
}
"""What numbers are quantized to."""


def _infer_quantize_linear(context: InferContext) -> tuple[TensorType, ...]:
    data, scale, zero_point = context.input(0), context.input(1), context.optional_input(2)
    check_granularity(context, data, scale, zero_point)
    dtype = DType.UINT8 if zero_point is None else zero_point.dtype
    if as_int(context.attribute("output_dtype")):
        asked = dtype_attribute(context, "output_dtype")
        if asked not in QUANTIZE_LINEAR_QUANTIZED or (zero_point is not None and asked != dtype):
            raise context.dtype_error(f"output_dtype is {asked}, and the zero point {zero_point or 'is left out'}")
        dtype = asked
    if as_int(context.attribute("precision")) and not dtype_attribute(context, "precision").is_float:
        raise context.dtype_error(f"precision must be a type of floats, got {dtype_attribute(context, 'precision')}")
    return (TensorType(dtype, data.shape),)


QUANTIZE_LINEAR = OpSchema(
    op_type="QuantizeLinear",
    inputs=(
        required("x", _WIDE),
        setting(required("y_scale", _QUANTIZE_LINEAR_SCALES)),
        optional("y_zero_point", QUANTIZE_LINEAR_QUANTIZED),
    ),
    outputs=(required("y", QUANTIZE_LINEAR_QUANTIZED),),
    infer=_infer_quantize_linear,
    attributes={
        "axis": Attribute(int, default=1),
        "block_size": Attribute(int, default=0),
        "output_dtype": Attribute(int, default=0),
        "precision": Attribute(int, default=0),
        "saturate": Attribute(int, default=1),
    },
    flops=normalized,
)
"""QuantizeLinear: x over its scale, rounded and moved by the zero point, as a narrow type; what is outside saturates.

A scale is one number, one for each place along `axis`, or one for each block of `block_size` places there. It is a
function of steps: no gradient flows through it.
"""


_DEQUANTIZE_LINEAR_DTYPES = QUANTIZE_LINEAR_QUANTIZED | {DType.INT32}


def _infer_dequantize_linear(context: InferContext) -> tuple[TensorType, ...]:
    data, scale, zero_point = context.input(0), context.input(1), context.optional_input(2)
    check_granularity(context, data, scale, zero_point)
    if zero_point is not None and zero_point.dtype != data.dtype:
        raise context.dtype_error(f"zero point {zero_point} must be of the type of {data}")
    given = as_int(context.attribute("output_dtype"))
    dtype = dtype_attribute(context, "output_dtype") if given else scale.dtype
    if dtype not in FLOATS:
        raise context.dtype_error(f"the output would be {dtype}: output_dtype must say which of {sorted(FLOATS)}")
    return (TensorType(dtype, data.shape),)


def _dequantize_linear_gradient(context: GradientContext) -> tuple[str | None, ...]:
    rest = (None,) * (len(context.node.inputs) - 2)
    if not context.needs(1):
        return None, None, *rest
    gradient, scale, data = incoming(context), context.type_of(context.input(1)), context.type_of(context.input(0))
    if context.attribute("block_size") or not scale.is_static:
        raise refusal(context, "a scale that is given by block, or whose number is not known, has no gradient")
    # What the scale multiplies is what a scale of 1 gives.
    ones = context.constant(np.ones(scale.static_shape, dtype=scale.dtype.numpy))
    units = apply(
        context,
        "DequantizeLinear",
        *(context.input(0), ones, *context.node.inputs[2:]),
        **given_attributes(context, ("axis", "output_dtype")),
    )
    along = () if scale.size == 1 else (scale_axis(as_int(context.attribute("axis")), data.rank),)
    axes = np.array([axis for axis in range(data.rank) if axis not in along], dtype=np.int64)
    product = apply(context, "Mul", gradient, units)
    summed = apply(context, "ReduceSum", product, context.constant(axes), keepdims=0, noop_with_empty_axes=1)
    shaped = apply(context, "Reshape", summed, context.constant(np.array(scale.static_shape, dtype=np.int64)))
    # The sums are of the output's type; the scale's may be another.
    return None, apply(context, "CastLike", shaped, context.input(1)), *rest


DEQUANTIZE_LINEAR = OpSchema(
    op_type="DequantizeLinear",
    inputs=(
        required("x", _DEQUANTIZE_LINEAR_DTYPES),
        setting(required("x_scale", FLOATS | {DType.FLOAT8E8M0})),
        optional("x_zero_point", _DEQUANTIZE_LINEAR_DTYPES),
    ),
    outputs=(required("y", FLOATS),),
    infer=_infer_dequantize_linear,
    gradient=_dequantize_linear_gradient,
    attributes={
        "axis": Attribute(int, default=1),
        "block_size": Attribute(int, default=0),
        "output_dtype": Attribute(int, default=0),
    },
    flops=normalized,
)
"""DequantizeLinear: x less its zero point, times the scale; a scale is given as QuantizeLinear's.

Scales, and so outputs, may be float64 too, which ONNX has not. The scale has a gradient, unless it is given by block;
x is of a type that has none.
"""


_DYNAMIC_QUANTIZE_LINEAR_FLOAT32 = frozenset({DType.FLOAT32})


_UINT8 = frozenset({DType.UINT8})


def _infer_dynamic_quantize_linear(context: InferContext) -> tuple[TensorType, ...]:
    return TensorType(DType.UINT8, context.input(0).shape), TensorType(DType.FLOAT32, ()), TensorType(DType.UINT8, ())


DYNAMIC_QUANTIZE_LINEAR = OpSchema(
    op_type="DynamicQuantizeLinear",
    inputs=(required("x", _DYNAMIC_QUANTIZE_LINEAR_FLOAT32),),
    outputs=(
        required("y", _UINT8),
        required("y_scale", _DYNAMIC_QUANTIZE_LINEAR_FLOAT32),
        required("y_zero_point", _UINT8),
    ),
    infer=_infer_dynamic_quantize_linear,
    flops=normalized,
)
"""DynamicQuantizeLinear: x as uint8, with the scale and the zero point that its smallest and largest element ask for.

The range has 0 in it. Where every element is 0 the scale is 1.
"""


_CONV_INTEGER_BYTES = frozenset({DType.INT8, DType.UINT8})


def _infer_conv_integer(context: InferContext) -> tuple[TensorType, ...]:
    data, weights = context.input(0), context.input(1)
    shape = infer_convolution(context, data, weights, None)
    for index, of, channels in ((2, data, 1), (3, weights, weights.shape[0])):
        zero_point = context.optional_input(index)
        if zero_point is None:
            continue
        if zero_point.dtype != of.dtype:
            raise context.dtype_error(f"zero point {zero_point} must be of the type of {of}")
        check_channels(context, zero_point, channels, "a zero point")
    return (TensorType(DType.INT32, shape),)


CONV_INTEGER = OpSchema(
    op_type="ConvInteger",
    inputs=(
        required("x", _CONV_INTEGER_BYTES),
        required("w", _CONV_INTEGER_BYTES),
        optional("x_zero_point", _CONV_INTEGER_BYTES),
        optional("w_zero_point", _CONV_INTEGER_BYTES),
    ),
    outputs=(required("y", frozenset({DType.INT32})),),
    infer=_infer_conv_integer,
    attributes=CONV_ATTRIBUTES,
)
"""ConvInteger: the convolution of 8-bit numbers less their zero points, as int32; what pads is 0 after that."""


def _infer_matmul_integer(context: InferContext) -> tuple[TensorType, ...]:
    left, right = context.input(0), context.input(1)
    for index, data, by_row, what in ((2, left, True, "A"), (3, right, False, "B")):
        zero_point = context.optional_input(index)
        if zero_point is None:
            continue
        if zero_point.dtype != data.dtype:
            raise context.dtype_error(f"the zero point of {what} is {zero_point}, and {what} is {data}")
        check_operand(context, zero_point, data, by_row=by_row, what=f"the zero point of {what}")
    return (TensorType(DType.INT32, infer_product(context, left, right)),)


MATMUL_INTEGER = OpSchema(
    op_type="MatMulInteger",
    inputs=(
        required("A", _CONV_INTEGER_BYTES),
        required("B", _CONV_INTEGER_BYTES),
        optional("a_zero_point", _CONV_INTEGER_BYTES),
        optional("b_zero_point", _CONV_INTEGER_BYTES),
    ),
    outputs=(required("Y", frozenset({DType.INT32})),),
    infer=_infer_matmul_integer,
    flops=stacked_products,
)
"""MatMulInteger: the product of matrices of 8-bit numbers less their zero points, as int32."""


def _infer_qlinear_conv(context: InferContext) -> tuple[TensorType, ...]:
    data, weights, zero_point = context.input(0), context.input(3), context.input(7)
    shape = infer_convolution(context, data, weights, context.optional_input(8))
    check_one_each(context, 1, 2, 0, "x")
    check_one_each(context, 4, 5, 3, "w")
    for index, channels, what in (
        (1, 1, "the scale of x"),
        (4, weights.shape[0], "the scale of w"),
        (6, 1, "the scale of y"),
        (7, 1, "the zero point of y"),
    ):
        check_channels(context, context.input(index), channels, what)
    return (TensorType(zero_point.dtype, shape),)


QLINEAR_CONV = OpSchema(
    op_type="QLinearConv",
    inputs=(
        required("x", _CONV_INTEGER_BYTES),
        required("x_scale", _DYNAMIC_QUANTIZE_LINEAR_FLOAT32),
        required("x_zero_point", _CONV_INTEGER_BYTES),
        required("w", _CONV_INTEGER_BYTES),
        required("w_scale", _DYNAMIC_QUANTIZE_LINEAR_FLOAT32),
        required("w_zero_point", _CONV_INTEGER_BYTES),
        required("y_scale", _DYNAMIC_QUANTIZE_LINEAR_FLOAT32),
        required("y_zero_point", _CONV_INTEGER_BYTES),
        optional("B", frozenset({DType.INT32})),
    ),
    outputs=(required("y", _CONV_INTEGER_BYTES),),
    infer=_infer_qlinear_conv,
    attributes=CONV_ATTRIBUTES,
)
"""QLinearConv: the convolution of quantized numbers, quantized; weights have one scale, or one for each feature.

The bias is int32, of the scale of the input times the weights'.
"""


_QLINEAR_MATMUL_DTYPES = frozenset({DType.INT8, DType.UINT8}) | (FLOATS8 - {DType.FLOAT8E8M0})


_QLINEAR_MATMUL_SCALES = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32})


def _infer_qlinear_matmul(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 1, 4, 6)
    left, right, zero_point = context.input(0), context.input(3), context.input(7)
    check_one_each(context, 1, 2, 0, "a")
    check_one_each(context, 4, 5, 3, "b")
    check_operand(context, context.input(1), left, by_row=True, what="the scale of a")
    check_operand(context, context.input(4), right, by_row=False, what="the scale of b")
    check_channels(context, context.input(6), 1, "the scale of y")
    check_channels(context, zero_point, 1, "the zero point of y")
    return (TensorType(zero_point.dtype, infer_product(context, left, right)),)


QLINEAR_MATMUL = OpSchema(
    op_type="QLinearMatMul",
    inputs=(
        required("a", _QLINEAR_MATMUL_DTYPES),
        required("a_scale", _QLINEAR_MATMUL_SCALES),
        required("a_zero_point", _QLINEAR_MATMUL_DTYPES),
        required("b", _QLINEAR_MATMUL_DTYPES),
        required("b_scale", _QLINEAR_MATMUL_SCALES),
        required("b_zero_point", _QLINEAR_MATMUL_DTYPES),
        required("y_scale", _QLINEAR_MATMUL_SCALES),
        required("y_zero_point", _QLINEAR_MATMUL_DTYPES),
    ),
    outputs=(required("y", _QLINEAR_MATMUL_DTYPES),),
    infer=_infer_qlinear_matmul,
)
"""QLinearMatMul: the product of quantized matrices, quantized: scales by row of `a`, by column of `b`, or one each."""
