"""DequantizeLinear: x less its zero point, times the scale; a scale is given as QuantizeLinear's.

Scales, and so outputs, may be float64 too, which ONNX has not. The scale has a gradient, unless it is given by block;
x is of a type that has none.
"""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, optional, required, setting
from weft_graph.operators.quantize_linear import QUANTIZED
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.casting import dtype_attribute
from weft_graph.shapes.composing import apply, given_attributes
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming, refusal
from weft_graph.shapes.quantizing import check_granularity, scale_axis
from weft_graph.types import DType, TensorType

_DTYPES = QUANTIZED | {DType.INT32}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, scale, zero_point = context.input(0), context.input(1), context.optional_input(2)
    check_granularity(context, data, scale, zero_point)
    if zero_point is not None and zero_point.dtype != data.dtype:
        raise context.dtype_error(f"zero point {zero_point} must be of the type of {data}")
    given = as_int(context.attribute("output_dtype"))
    dtype = dtype_attribute(context, "output_dtype") if given else scale.dtype
    if dtype not in FLOATS:
        raise context.dtype_error(f"the output would be {dtype}: output_dtype must say which of {sorted(FLOATS)}")
    return (TensorType(dtype, data.shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
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


SCHEMA = OpSchema(
    op_type="DequantizeLinear",
    inputs=(
        required("x", _DTYPES),
        setting(required("x_scale", FLOATS | {DType.FLOAT8E8M0})),
        optional("x_zero_point", _DTYPES),
    ),
    outputs=(required("y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "axis": Attribute(int, default=1),
        "block_size": Attribute(int, default=0),
        "output_dtype": Attribute(int, default=0),
    },
    flops=normalized,
)
