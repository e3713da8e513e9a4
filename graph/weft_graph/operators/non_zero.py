"""NonZero: where the elements are that are not zero, a row for each dimension and a column for each of them."""

from __future__ import annotations

from weft_graph.dimensions.dims import product
from weft_graph.formals import ANY, INT64, required
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    return (TensorType(DType.INT64, (data.rank, context.unknown(product(data.shape)))),)


SCHEMA = OpSchema(op_type="NonZero", inputs=(required("X", ANY),), outputs=(required("Y", INT64),), infer=_infer)
