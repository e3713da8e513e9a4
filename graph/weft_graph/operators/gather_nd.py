"""GatherND: a slice of the data for each tuple of indices, which are the last dimension of the indices."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, INDICES, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.gathering import infer_tuples
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    tuples, part = infer_tuples(context, as_int(context.attribute("batch_dims")))
    return (TensorType(context.input(0).dtype, (*tuples, *part)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = {"batch_dims": as_int(context.attribute("batch_dims"))}
    return context.emit("GatherNDGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


SCHEMA = OpSchema(
    op_type="GatherND",
    inputs=(required("data", ANY), required("indices", INDICES)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"batch_dims": Attribute(int, default=0)},
    flops=moved,
)
