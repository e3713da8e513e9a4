"""Trilu: the upper or lower triangle of matrices, from diagonal `k` on; 0 elsewhere."""

from __future__ import annotations

from weft_graph.dimensions.dims import agree, product
from weft_graph.formals import ANY, INT64, optional, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, diagonal = context.input(0), context.optional_input(1)
    if data.rank < 2:
        raise context.shape_error(f"the input must be a matrix or a stack of them, got {data}")
    if diagonal is not None and not agree(product(diagonal.shape), 1):
        raise context.shape_error(f"k {diagonal} must be one number")
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("upper",))
    (data,) = context.emit("Trilu", (incoming(context), *context.node.inputs[1:]), attributes)
    return (data, None)[: len(context.node.inputs)]


SCHEMA = OpSchema(
    op_type="Trilu",
    inputs=(required("input", ANY), optional("k", INT64)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"upper": Attribute(int, default=1)},
    flops=moved,
)
