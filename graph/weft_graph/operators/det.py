"""Det: the determinants of square matrices."""

from __future__ import annotations

from weft_graph.dimensions.dims import agree
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    if data.rank < 2 or not agree(*data.shape[-2:]):
        raise context.shape_error(f"the input must be square matrices, got {data}")
    return (TensorType(data.dtype, data.shape[:-2]),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("DetGrad", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="Det",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
)
