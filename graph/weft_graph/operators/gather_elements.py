"""GatherElements: one element of the data for each index, which counts along `axis` and from the end below 0."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, INDICES, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.gathering import check_beside, check_known_indices
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, indices = context.input(0), context.input(1)
    axis = infer_axis(context, data.rank)
    check_beside(context, axis)
    dim = data.shape[axis]
    check_known_indices(context, axis, low=-dim if isinstance(dim, int) else 0)
    return (TensorType(data.dtype, indices.shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = {"axis": as_int(context.attribute("axis"))}
    return context.emit("GatherElementsGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


SCHEMA = OpSchema(
    op_type="GatherElements",
    inputs=(required("data", ANY), required("indices", INDICES)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=0)},
    flops=moved,
)
