"""Transpose: the dimensions in the order `perm`; reversed where it is left out."""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.formals import ANY, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.viewing import transposed
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, given = context.input(0), context.attribute("perm")
    order = tuple(range(data.rank))[::-1] if given is None else as_ints(given)
    if sorted(order) != list(range(data.rank)):
        raise context.shape_error(f"perm {order} is not an order of the dimensions of {data}")
    return (TensorType(data.dtype, tuple(data.shape[axis] for axis in order)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    given = context.attribute("perm")
    if given is None:
        return context.emit("Transpose", (incoming(context),))
    order = as_ints(given)
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    return context.emit("Transpose", (incoming(context),), {"perm": inverse})


SCHEMA = OpSchema(
    op_type="Transpose",
    inputs=(required("data", ANY),),
    outputs=(required("transposed", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"perm": Attribute(tuple)},
    flops=moved,
    views=transposed,
)
