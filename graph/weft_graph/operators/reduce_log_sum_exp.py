"""ReduceLogSumExp: the logarithm of the sum of exponentials over `axes` (an input or an attribute), or over all."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, optional, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, by_data, infer_reduction, spread


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    below = apply(context, "Sub", context.input(0), spread(context, context.output(0)))
    return by_data(context, apply(context, "Mul", spread(context, incoming(context)), apply(context, "Exp", below)))


SCHEMA = OpSchema(
    op_type="ReduceLogSumExp",
    inputs=(required("data", FLOATS), optional("axes", INT64)),
    outputs=(required("reduced", FLOATS),),
    infer=infer_reduction,
    gradient=_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
