"""A copy of the cache with the update written into it."""

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
    cache, update = required(inputs, 2)
    axis = sequence_axis(attributes, cache.ndim)
    shape = (cache.shape[0], update.shape[axis], cache.shape[axis])
    result = cache.copy()
    xp.moveaxis(result, axis, 1)[cache_places(xp, optional(inputs, 2), shape, attributes)] = xp.moveaxis(
        update, axis, 1
    )
    return (result,)
