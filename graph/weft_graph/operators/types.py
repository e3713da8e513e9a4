"""Types of elements: casts, and bits read as another type."""

from __future__ import annotations

from weft_graph.folding import FOLD_CAST
from weft_graph.formals import ANY, required, setting
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import ROUNDING_ATTRIBUTES, check_round_mode, dtype_attribute
from weft_graph.shapes.flops import moved
from weft_graph.shapes.gradients import incoming
from weft_graph.types import TensorType


def _infer_cast(context: InferContext) -> tuple[TensorType, ...]:
    check_round_mode(context)
    return (TensorType(dtype_attribute(context, "to"), context.input(0).shape),)


def _cast_gradient(context: GradientContext) -> tuple[str | None, ...]:
    dtype = context.type_of(context.input(0)).dtype
    if not dtype.is_float:
        return (None,)
    return context.emit("Cast", (incoming(context),), {"to": NUMBER_OF_DTYPE[dtype]})


CAST = OpSchema(
    op_type="Cast",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer_cast,
    gradient=_cast_gradient,
    attributes={"to": Attribute(int, required=True), **ROUNDING_ATTRIBUTES},
    pointwise=True,
    folding=FOLD_CAST,
)
"""Cast: the elements as another type, `to` by ONNX's number. No gradient flows through a type that has none."""


def _infer_cast_like(context: InferContext) -> tuple[TensorType, ...]:
    check_round_mode(context)
    return (TensorType(context.input(1).dtype, context.input(0).shape),)


def _cast_like_gradient(context: GradientContext) -> tuple[str | None, ...]:
    dtype = context.type_of(context.input(0)).dtype
    if not dtype.is_float:
        return None, None
    return context.emit("Cast", (incoming(context),), {"to": NUMBER_OF_DTYPE[dtype]})[0], None


CAST_LIKE = OpSchema(
    op_type="CastLike",
    inputs=(required("input", ANY), setting(required("target_type", ANY))),
    outputs=(required("output", ANY),),
    infer=_infer_cast_like,
    gradient=_cast_like_gradient,
    attributes=ROUNDING_ATTRIBUTES,
    flops=moved,
    folding=FOLD_CAST,
)
"""CastLike: the elements as the type of `target_type`, whose values do not matter."""


def _infer_bit_cast(context: InferContext) -> tuple[TensorType, ...]:
    data, dtype = context.input(0), dtype_attribute(context, "to")
    if data.dtype.bits != dtype.bits:
        raise context.dtype_error(f"{data.dtype} has {data.dtype.bits} bits and {dtype} {dtype.bits}")
    return (TensorType(dtype, data.shape),)


BIT_CAST = OpSchema(
    op_type="BitCast",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer_bit_cast,
    attributes={"to": Attribute(int, required=True)},
    flops=moved,
)
"""BitCast: the same bits as another type, `to` by ONNX's number, whose elements have as many."""
