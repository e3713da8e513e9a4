"""ReduceL2: the square root of the sum of squares over `axes` (an input or an attribute), or over all.

Where it is 0 the gradient is 0.
"""

from __future__ import annotations

from weft_graph.formals import INT64, SUMMABLE, optional, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, by_data, infer_reduction, spread


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    norm = context.output(0)
    zero = apply(context, "Equal", norm, scalar(context, 0, norm))
    safe = apply(context, "Where", zero, scalar(context, 1, norm), norm)
    share = apply(context, "Div", incoming(context), safe)
    return by_data(context, apply(context, "Mul", spread(context, share), context.input(0)))


SCHEMA = OpSchema(
    op_type="ReduceL2",
    inputs=(required("data", SUMMABLE), optional("axes", INT64)),
    outputs=(required("reduced", SUMMABLE),),
    infer=infer_reduction,
    gradient=_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
