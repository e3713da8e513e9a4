"""The data inside a wider array, whose rest is a constant or repeats the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.padding import inside, kept, padded, sides_of
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.lists import integers

HOST_INPUTS = (1, 2, 3)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs, 1)
    mode = as_str(attributes["mode"])
    pads = integers(optional(inputs, 1), attributes, "pads") or ()
    sides = sides_of(data.ndim, pads, integers(optional(inputs, 3), {}, "axes"))
    left = data[kept(sides)]
    if mode != "constant":
        return (xp.pad(left, tuple((max(begin, 0), max(end, 0)) for begin, end in sides), mode=mode),)
    constant = optional(inputs, 2)
    value = as_float(attributes["value"]) if constant is None else constant.reshape(-1)[0]
    result = xp.full(padded(data.shape, sides, mode), value, dtype=data.dtype)
    result[inside(sides)] = left
    return (result,)
