"""ReduceProd: the product over `axes` (an input or an attribute), or over all."""

from __future__ import annotations

from weft_graph.formals import INT64, SUMMABLE, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, by_data, infer_reduction


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    attributes = given_attributes(context, REDUCTION_ATTRIBUTES)
    return by_data(context, context.emit("ReduceProdGrad", inputs, attributes, domain=WEFT_DOMAIN)[0])


SCHEMA = OpSchema(
    op_type="ReduceProd",
    inputs=(required("data", SUMMABLE), optional("axes", INT64)),
    outputs=(required("reduced", SUMMABLE),),
    infer=infer_reduction,
    gradient=_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
