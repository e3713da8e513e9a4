"""Gather: the entries of `data` along `axis` that `indices` name; those below 0 count from the end."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, INDICES, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.gathering import check_known_indices, gathering_gradient, infer_gathered
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    axis = infer_axis(context, data.rank)
    dim = data.shape[axis]
    check_known_indices(context, axis, low=-dim if isinstance(dim, int) else 0)
    return (infer_gathered(context, axis),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return gathering_gradient(context, {"axis": as_int(context.attribute("axis"))}, wraps=True)


SCHEMA = OpSchema(
    op_type="Gather",
    inputs=(required("data", ANY), required("indices", INDICES)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=0)},
)
