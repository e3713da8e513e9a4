"""The gradient of a largest or smallest element: elements that are equal to it share it evenly.

An even share is the mean of the slopes that a small change towards each of the equals would have. MaxPool alone gives
all to the first of equals, as pooling has ever done.
"""

from __future__ import annotations

from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import GradientContext
from weft_graph.shapes.broadcasting import sum_to
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.shapes.reductions import by_data, spread, summed


def hits(context: GradientContext, value: str, extreme: str) -> str:
    """The name of 1 where `value` equals `extreme` and 0 elsewhere, of the element type of `value`."""
    dtype = context.type_of(value).dtype
    return apply(context, "Cast", apply(context, "Equal", value, extreme), to=NUMBER_OF_DTYPE[dtype])


def shared_by_equals(context: GradientContext) -> tuple[str | None, ...]:
    """The gradients of Max and Min: each input's share of it, summed to the input's shape."""
    gradient, inputs, extreme = incoming(context), context.node.inputs, context.output(0)
    if len(inputs) == 1:
        return (gradient,)
    count = apply(context, "Sum", *(hits(context, name, extreme) for name in inputs))
    share = apply(context, "Div", gradient, count)
    zero = scalar(context, 0, extreme)
    # Not a product of a share and a hit: an infinite gradient, as of a root at 0, times 0 would be NaN.
    return tuple(
        sum_to(context, apply(context, "Where", apply(context, "Equal", name, extreme), share, zero), name)
        if context.needs(index)
        else None
        for index, name in enumerate(inputs)
    )


def reduced_to_equals(context: GradientContext) -> tuple[str | None, ...]:
    """The gradients of ReduceMax and ReduceMin: the data's, and none for the axes."""
    hit = hits(context, context.input(0), spread(context, context.output(0)))
    share = apply(context, "Div", incoming(context), summed(context, hit))
    return by_data(context, apply(context, "Mul", hit, spread(context, share)))
