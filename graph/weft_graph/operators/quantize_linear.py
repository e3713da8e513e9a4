"""QuantizeLinear: x over its scale, rounded and moved by the zero point, as a narrow type; what is outside saturates.

A scale is one number, one for each place along `axis`, or one for each block of `block_size` places there. It is a
function of steps: no gradient flows through it.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS8, optional, required, setting
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.casting import dtype_attribute
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.quantizing import check_granularity
from weft_graph.types import DType, TensorType

_WIDE = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT32})
_SCALES = _WIDE | {DType.FLOAT8E8M0}
QUANTIZED = (FLOATS8 - {DType.FLOAT8E8M0}) | {
    *(DType.INT8, DType.UINT8, DType.INT16, DType.UINT16),
    *(DType.INT4, DType.UINT4, DType.INT2, DType.UINT2, DType.FLOAT4E2M1),
}
"""What numbers are quantized to."""


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, scale, zero_point = context.input(0), context.input(1), context.optional_input(2)
    check_granularity(context, data, scale, zero_point)
    dtype = DType.UINT8 if zero_point is None else zero_point.dtype
    if as_int(context.attribute("output_dtype")):
        asked = dtype_attribute(context, "output_dtype")
        if asked not in QUANTIZED or (zero_point is not None and asked != dtype):
            raise context.dtype_error(f"output_dtype is {asked}, and the zero point {zero_point or 'is left out'}")
        dtype = asked
    if as_int(context.attribute("precision")) and not dtype_attribute(context, "precision").is_float:
        raise context.dtype_error(f"precision must be a type of floats, got {dtype_attribute(context, 'precision')}")
    return (TensorType(dtype, data.shape),)


SCHEMA = OpSchema(
    op_type="QuantizeLinear",
    inputs=(required("x", _WIDE), setting(required("y_scale", _SCALES)), optional("y_zero_point", QUANTIZED)),
    outputs=(required("y", QUANTIZED),),
    infer=_infer,
    attributes={
        "axis": Attribute(int, default=1),
        "block_size": Attribute(int, default=0),
        "output_dtype": Attribute(int, default=0),
        "precision": Attribute(int, default=0),
        "saturate": Attribute(int, default=1),
    },
    flops=normalized,
)
