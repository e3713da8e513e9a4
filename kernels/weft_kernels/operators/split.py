"""Views of one piece after the other along an axis."""

from __future__ import annotations

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
    axis = as_int(attributes["axis"])
    assert context.asked is not None, "a node of Split says how many outputs it has"
    ends = split_ends(data.shape[axis], len(context.asked), integers(optional(inputs, 1), attributes, "split"))
    return tuple(context.xp.split(data, ends[1:-1], axis=axis))
