"""ScatterND: the data with a slice of updates for each tuple of indices, put there or combined with what is there."""

from __future__ import annotations

from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import ANY, INDICES, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.gathering import infer_tuples
from weft_graph.shapes.scattering import Scattering, infer_reduction
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, updates = context.input(0), context.input(2)
    infer_reduction(context)
    tuples, part = infer_tuples(context)
    if not agree_all(updates.shape, (*tuples, *part)):
        raise context.shape_error(f"updates {updates} must be of the shape {[*tuples, *part]}")
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return Scattering(context, "GatherND", {}).gradients()


SCHEMA = OpSchema(
    op_type="ScatterND",
    inputs=(required("data", ANY), required("indices", INDICES), required("updates", ANY)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"reduction": Attribute(str, default="none")},
    flops=moved,
)
