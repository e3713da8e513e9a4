"""Cast: the elements as another type, `to` by ONNX's number. No gradient flows through a type that has none."""

from __future__ import annotations

from weft_graph.formals import ANY, required
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.casting import ROUNDING_ATTRIBUTES, check_round_mode, dtype_attribute
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_round_mode(context)
    return (TensorType(dtype_attribute(context, "to"), context.input(0).shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    dtype = context.type_of(context.input(0)).dtype
    if not dtype.is_float:
        return (None,)
    return context.emit("Cast", (incoming(context),), {"to": NUMBER_OF_DTYPE[dtype]})


SCHEMA = OpSchema(
    op_type="Cast",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"to": Attribute(int, required=True), **ROUNDING_ATTRIBUTES},
    pointwise=True,
)
