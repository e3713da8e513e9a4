"""DynamicQuantizeLinear: x as uint8, with the scale and the zero point that its smallest and largest element ask for.

The range has 0 in it. Where every element is 0 the scale is 1.
"""

from __future__ import annotations

from weft_graph.formals import required
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import normalized
from weft_graph.types import DType, TensorType

_FLOAT32 = frozenset({DType.FLOAT32})
_UINT8 = frozenset({DType.UINT8})


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return TensorType(DType.UINT8, context.input(0).shape), TensorType(DType.FLOAT32, ()), TensorType(DType.UINT8, ())


SCHEMA = OpSchema(
    op_type="DynamicQuantizeLinear",
    inputs=(required("x", _FLOAT32),),
    outputs=(required("y", _UINT8), required("y_scale", _FLOAT32), required("y_zero_point", _UINT8)),
    infer=_infer,
    flops=normalized,
)
