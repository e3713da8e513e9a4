"""Reshape: the elements in their order, in another shape; 0 copies a dimension, -1 is what is left."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, INT64, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.reshaping import reshaped
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, target = context.input(0), context.dims(1)
    if target is None or context.input(1).rank != 1:
        raise context.shape_error(f"the shape must be a list of as many numbers as dimensions, got {context.input(1)}")
    allow_zero = bool(as_int(context.attribute("allowzero")))
    try:
        shape = reshaped(data.shape, target, allow_zero=allow_zero)
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(data.dtype, shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    (data,) = context.emit("ReshapeLike", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)
    return (data, None)[: len(context.node.inputs)]


SCHEMA = OpSchema(
    op_type="Reshape",
    inputs=(required("data", ANY), required("shape", INT64)),
    outputs=(required("reshaped", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"allowzero": Attribute(int, default=0)},
    flops=moved,
    views=True,
)
