"""ReverseSequence: each sample's first `sequence_lens` elements in reverse order, the others where they were."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import ANY, INT64, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, lengths = context.input(0), context.input(1)
    batch, time = (as_int(context.attribute(name)) for name in ("batch_axis", "time_axis"))
    if data.rank < 2 or {batch, time} != {0, 1}:
        raise context.shape_error(f"batch_axis {batch} and time_axis {time} must be 0 and 1, in any order, of {data}")
    if not agree_all(lengths.shape, data.shape[batch : batch + 1]):
        raise context.shape_error(f"sequence_lens {lengths} must be one for each sample of {data}")
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("batch_axis", "time_axis"))
    return context.emit("ReverseSequence", (incoming(context), context.input(1)), attributes)[0], None


SCHEMA = OpSchema(
    op_type="ReverseSequence",
    inputs=(required("input", ANY), required("sequence_lens", INT64)),
    outputs=(required("Y", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"batch_axis": Attribute(int, default=1), "time_axis": Attribute(int, default=0)},
    flops=moved,
)
