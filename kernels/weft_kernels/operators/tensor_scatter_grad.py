"""Gradients of the cache, which is 0 where it was overwritten, and of what was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.indexing.cache_places import cache_places, sequence_axis
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (2,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, update = required(inputs, 2)
    axis = sequence_axis(attributes, gradient.ndim)
    shape = (gradient.shape[0], update.shape[axis], gradient.shape[axis])
    places = cache_places(xp, optional(inputs, 2), shape, attributes)
    by_cache = gradient.copy()
    moved = xp.moveaxis(by_cache, axis, 1)
    by_update = moved[places]
    moved[places] = 0
    return by_cache, xp.moveaxis(by_update, 1, axis)
