"""Flatten: a matrix whose rows are the dimensions before `axis` and whose columns are those from it on."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import product
from weft_graph.formals import ANY, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, axis = context.input(0), as_int(context.attribute("axis"))
    if not -data.rank <= axis <= data.rank:
        raise context.shape_error(f"axis {axis} is outside [{-data.rank}, {data.rank}] of {data}")
    axis = axis + data.rank if axis < 0 else axis
    return (TensorType(data.dtype, (product(data.shape[:axis]), product(data.shape[axis:]))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("ReshapeLike", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="Flatten",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=1)},
    flops=moved,
    views=True,
)
