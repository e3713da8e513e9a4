"""Sum: the sum of all inputs, element by element, broadcast."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required, variadic
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_variadic, sum_to
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), context.node.inputs
    return tuple(sum_to(context, gradient, name) if context.needs(i) else None for i, name in enumerate(inputs))


SCHEMA = OpSchema(
    op_type="Sum",
    inputs=(variadic("data_0", FLOATS),),
    outputs=(required("sum", FLOATS),),
    infer=infer_variadic,
    gradient=_gradient,
    pointwise=True,
)
