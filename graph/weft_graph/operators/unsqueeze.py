"""Unsqueeze: with a dimension of 1 at each of `axes`, counted in the output."""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.dimensions.dims import product
from weft_graph.formals import ANY, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import OpenAxes, infer_axes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.viewing import squeezed
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    given = context.attribute("axes")
    type_ = context.optional_input(1)
    if given is None and type_ is None:
        raise context.shape_error("axes are missing")
    count = len(as_ints(given)) if type_ is None else product(type_.shape)
    if not isinstance(count, int):
        raise context.shape_error(f"it must be known before a step how many axes there are, got {type_}")
    rank = data.rank + count
    axes = infer_axes(context, rank)
    if isinstance(axes, OpenAxes):
        return (TensorType(data.dtype, tuple(context.unknown() for _ in range(rank))),)
    axes = axes or ()
    rest = iter(data.shape)
    return (TensorType(data.dtype, tuple(1 if axis in axes else next(rest) for axis in range(rank))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    (data,) = context.emit("ReshapeLike", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)
    return (data, None)[: len(context.node.inputs)]


SCHEMA = OpSchema(
    op_type="Unsqueeze",
    inputs=(required("data", ANY), optional("axes", INT64)),
    outputs=(required("expanded", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axes": Attribute(tuple)},
    flops=moved,
    views=squeezed,
)
