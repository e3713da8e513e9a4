"""Mean: the mean of all inputs, element by element, broadcast."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required, variadic
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_variadic, sum_to
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), context.node.inputs
    share = apply(context, "Div", gradient, scalar(context, len(inputs), gradient))
    return tuple(sum_to(context, share, name) if context.needs(i) else None for i, name in enumerate(inputs))


SCHEMA = OpSchema(
    op_type="Mean",
    inputs=(variadic("data_0", FLOATS),),
    outputs=(required("mean", FLOATS),),
    infer=infer_variadic,
    gradient=_gradient,
    pointwise=True,
)
