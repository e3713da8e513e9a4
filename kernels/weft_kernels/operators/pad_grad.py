"""Each element's gradient, to which those of its repetitions are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.padding import inside, kept, sides_of
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.lists import integers

HOST_INPUTS = (2, 3)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, data = required(inputs, 2)
    mode = as_str(attributes["mode"])
    pads = integers(optional(inputs, 2), attributes, "pads") or ()
    sides = sides_of(data.ndim, pads, integers(optional(inputs, 3), {}, "axes"))
    result = context.xp.zeros(data.shape, dtype=gradient.dtype)
    if mode == "constant":
        result[kept(sides)] = gradient[inside(sides)]
    else:
        for axis, (begin, end) in enumerate(sides):
            gradient = _folded(gradient.swapaxes(0, axis), max(begin, 0), max(end, 0), mode).swapaxes(0, axis)
        result[kept(sides)] = gradient
    return (result,)


def _folded(gradient: Array, begin: int, end: int, mode: str) -> Array:
    """The gradient without its first `begin` and last `end` rows, which are added to the rows that they repeat."""
    if begin == end == 0:
        return gradient
    size = gradient.shape[0] - begin - end
    repeated = np.pad(np.arange(size), (begin, end), mode=mode)  # type: ignore[call-overload]  # one of Pad's modes
    result = gradient[begin : begin + size].copy()
    for row in (*range(begin), *range(begin + size, begin + size + end)):
        result[repeated[row]] += gradient[row]
    return result
