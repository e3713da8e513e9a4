"""CastLike: the elements as the type of `target_type`, whose values do not matter."""

from __future__ import annotations

from weft_graph.formals import ANY, required, setting
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.casting import ROUNDING_ATTRIBUTES, check_round_mode
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_round_mode(context)
    return (TensorType(context.input(1).dtype, context.input(0).shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    dtype = context.type_of(context.input(0)).dtype
    if not dtype.is_float:
        return None, None
    return context.emit("Cast", (incoming(context),), {"to": NUMBER_OF_DTYPE[dtype]})[0], None


SCHEMA = OpSchema(
    op_type="CastLike",
    inputs=(required("input", ANY), setting(required("target_type", ANY))),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes=ROUNDING_ATTRIBUTES,
    flops=moved,
)
