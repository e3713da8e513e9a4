"""Slice: along each of `axes` the elements from a start to before an end, by a step that may go backwards.

Before opset 10 the lists are attributes.
"""

from __future__ import annotations

from weft_graph.formals import ANY, INDICES, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.lists import infer_amounts, infer_required_amounts
from weft_graph.shapes.slicing import bounds_of, sliced
from weft_graph.shapes.viewing import part
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    starts = infer_required_amounts(context, 1, "starts")
    ends = infer_required_amounts(context, 2, "ends")
    axes, steps = infer_amounts(context, 3, "axes"), infer_amounts(context, 4, "steps")
    try:
        shape = sliced(data.shape, bounds_of(data.rank, starts, ends, axes, steps), context.unknown)
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(data.dtype, shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("starts", "ends", "axes"))
    (data,) = context.emit("SliceGrad", (incoming(context), *context.node.inputs), attributes, domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


SCHEMA = OpSchema(
    op_type="Slice",
    inputs=(
        required("data", ANY),
        optional("starts", INDICES),
        optional("ends", INDICES),
        optional("axes", INDICES),
        optional("steps", INDICES),
    ),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"starts": Attribute(tuple), "ends": Attribute(tuple), "axes": Attribute(tuple)},
    flops=moved,
    views=part,
)
