"""The pieces' gradients one after the other, 0 for one that is left out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.slicing import split_ends
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.lists import integers

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs, 1)
    axis, pieces = as_int(attributes["axis"]), inputs[2:]
    ends = split_ends(data.shape[axis], len(pieces), integers(optional(inputs, 1), attributes, "split"))
    result = context.xp.zeros(data.shape, dtype=data.dtype)
    along = result.swapaxes(0, axis)
    for (begin, end), piece in zip(itertools.pairwise(ends), pieces, strict=True):
        if piece is not None:
            along[begin:end] = piece.swapaxes(0, axis)
    return (result,)
