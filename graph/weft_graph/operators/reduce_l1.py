"""ReduceL1: the sum of absolute values over `axes` (an input or an attribute), or over all."""

from __future__ import annotations

from weft_graph.formals import INT64, SUMMABLE, optional, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, by_data, infer_reduction, spread


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    slope = apply(context, "Sign", context.input(0))
    return by_data(context, apply(context, "Mul", spread(context, incoming(context)), slope))


SCHEMA = OpSchema(
    op_type="ReduceL1",
    inputs=(required("data", SUMMABLE), optional("axes", INT64)),
    outputs=(required("reduced", SUMMABLE),),
    infer=infer_reduction,
    gradient=_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
