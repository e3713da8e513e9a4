"""ScatterElements: the data with an update for each index along `axis`, put there or combined with what is there."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import ANY, INDICES, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.flops import moved
from weft_graph.shapes.gathering import check_beside, check_known_indices
from weft_graph.shapes.scattering import Scattering, infer_reduction
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, indices, updates = (context.input(index) for index in range(3))
    infer_reduction(context)
    axis = infer_axis(context, data.rank)
    check_beside(context, axis)
    if not agree_all(indices.shape, updates.shape):
        raise context.shape_error(f"updates {updates} must be one for each of the indices {indices}")
    dim = data.shape[axis]
    check_known_indices(context, axis, low=-dim if isinstance(dim, int) else 0)
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return Scattering(context, "GatherElements", {"axis": as_int(context.attribute("axis"))}).gradients()


SCHEMA = OpSchema(
    op_type="ScatterElements",
    inputs=(required("data", ANY), required("indices", INDICES), required("updates", ANY)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=0), "reduction": Attribute(str, default="none")},
    flops=moved,
)
