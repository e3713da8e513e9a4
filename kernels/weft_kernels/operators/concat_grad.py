"""Views of the gradient, one for each array that was joined."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, *parts = required(inputs)
    axis = as_int(attributes["axis"])
    ends = tuple(itertools.accumulate(part.shape[axis] for part in parts))
    return tuple(context.xp.split(gradient, ends[:-1], axis=axis))
