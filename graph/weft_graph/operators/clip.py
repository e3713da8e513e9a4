"""Y = X, not below `min` and not above `max`: scalar inputs or attributes, either may be left out.

On a bound the gradient is X's, so that a parameter there can leave it. Where `min` is above `max`, Y is `max`.
"""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.dimensions.dims import agree, product
from weft_graph.formals import NUMBERS, optional, required, setting
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype, sum_to
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.types import TensorType


def _bound(context: GradientContext, index: int, name: str) -> str | None:
    """The value that bounds, or None where the node leaves it out."""
    number = context.attribute(name)
    return context.input(index) or None if number is None else scalar(context, as_float(number), context.input(0))


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    for index, name in ((1, "min"), (2, "max")):
        bound = context.optional_input(index)
        if bound is None:
            continue
        if context.attribute(name) is not None:
            raise context.shape_error(f"{name} is an input and an attribute; it must be one of them")
        check_same_dtype(context, 0, index)
        if not agree(product(bound.shape), 1) or bound.rank > data.rank:
            raise context.shape_error(f"{name} {bound} must be a scalar")
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, data = incoming(context), context.input(0)
    zero = scalar(context, 0, data)
    low, high = _bound(context, 1, "min"), _bound(context, 2, "max")
    gradients: list[str | None] = [None] * len(context.node.inputs)
    raised = data if low is None else apply(context, "Max", data, low)
    above = None if high is None else apply(context, "Greater", raised, high)
    below = None if low is None else apply(context, "Less", data, low)
    if above is not None and context.needs(2):
        gradients[2] = sum_to(context, apply(context, "Where", above, gradient, zero), context.input(2))
    left = gradient if above is None else apply(context, "Where", above, zero, gradient)
    if below is not None and context.needs(1):
        gradients[1] = sum_to(context, apply(context, "Where", below, left, zero), context.input(1))
    gradients[0] = left if below is None else apply(context, "Where", below, zero, left)
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="Clip",
    inputs=(required("input", NUMBERS), setting(optional("min", NUMBERS)), setting(optional("max", NUMBERS))),
    outputs=(required("output", NUMBERS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"min": Attribute(float), "max": Attribute(float)},
    pointwise=True,
)
