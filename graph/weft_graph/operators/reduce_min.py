"""ReduceMin: the smallest element over `axes` (an input or an attribute), or over all.

Of no elements it is the type's highest value. Equals share the gradient.
"""

from __future__ import annotations

from weft_graph.formals import ANY, INT64, optional, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.extremes import hits
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, by_data, infer_reduction, spread, summed

_DTYPES = ANY


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    hit = hits(context, context.input(0), spread(context, context.output(0)))
    share = apply(context, "Div", incoming(context), summed(context, hit))
    return by_data(context, apply(context, "Mul", hit, spread(context, share)))


SCHEMA = OpSchema(
    op_type="ReduceMin",
    inputs=(required("data", _DTYPES), optional("axes", INT64)),
    outputs=(required("reduced", _DTYPES),),
    infer=infer_reduction,
    gradient=_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
