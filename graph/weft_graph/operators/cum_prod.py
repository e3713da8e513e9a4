"""CumProd: the product of all elements up to each one along `axis`; without itself, or from the end, as asked."""

from __future__ import annotations

from weft_graph.formals import INDICES, SUMMABLE, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.cum_sum import infer_running
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("exclusive", "reverse"))
    inputs = (incoming(context), *context.node.inputs)
    return context.emit("CumProdGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


SCHEMA = OpSchema(
    op_type="CumProd",
    inputs=(required("x", SUMMABLE), required("axis", INDICES)),
    outputs=(required("y", SUMMABLE),),
    infer=infer_running,
    gradient=_gradient,
    attributes={"exclusive": Attribute(int, default=0), "reverse": Attribute(int, default=0)},
    flops=reduced,
)
