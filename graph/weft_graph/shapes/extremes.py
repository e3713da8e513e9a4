"""The gradient of a largest or smallest element: elements that are equal to it share it evenly.

An even share is the mean of the slopes that a small change towards each of the equals would have. MaxPool alone gives
all to the first of equals, as pooling has ever done.
"""

from __future__ import annotations

from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import GradientContext
from weft_graph.shapes.broadcasting import sum_to
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.reductions import by_data, spread, summed


def hits(context: GradientContext, value: str, extreme: str) -> str:
    """The name of 1 where `value` equals `extreme` and 0 elsewhere, of the element type of `value`."""
    dtype = context.type_of(value).dtype
    return apply(context, "Cast", apply(context, "Equal", value, extreme), to=NUMBER_OF_DTYPE[dtype])


def shared_by_equals(context: GradientContext) -> tuple[str | None, ...]:
    """The gradients of Max and Min: each input's share of it, summed to the input's shape."""
    gradient, inputs = incoming(context), context.node.inputs
    if len(inputs) == 1:
        return (gradient,)
    of_input = [hits(context, name, context.output(0)) for name in inputs]
    count = apply(context, "Sum", *of_input)
    share = apply(context, "Div", gradient, count)
    return tuple(
        sum_to(context, apply(context, "Mul", share, of_input[index]), name) if context.needs(index) else None
        for index, name in enumerate(inputs)
    )


def reduced_to_equals(context: GradientContext) -> tuple[str | None, ...]:
    """The gradients of ReduceMax and ReduceMin: the data's, and none for the axes."""
    hit = hits(context, context.input(0), spread(context, context.output(0)))
    share = apply(context, "Div", incoming(context), summed(context, hit))
    return by_data(context, apply(context, "Mul", hit, spread(context, share)))
