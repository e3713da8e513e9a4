"""Gradients of the cosines and sines: of every token that reads them, summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.attention.rotation import by_token, pairs_of, places_in
from weft_kernels.element_types import statistics_dtype
from weft_kernels.indexing.rows import summed_rows
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.products.matrix import sum_stack


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, cache = required(inputs, 3)
    wide, pairs = statistics_dtype(xp, data), pairs_of(attributes, cache.shape[-1])
    flowing, tokens = (by_token(array, attributes).astype(wide, copy=False) for array in (gradient, data))
    (u, v), (a, b) = ((array[..., pairs.first], array[..., pairs.second]) for array in (flowing, tokens))
    places = places_in(xp, cache, optional(inputs, 3))
    results = []
    for by_angle in (u * a + v * b, v * a - u * b):
        rows = xp.sum(by_angle, axis=2, dtype=wide)
        if places is None:
            rows = sum_stack(xp, rows, cache.shape)
        else:
            index = xp.broadcast_to(places, rows.shape[:2]).reshape(-1)
            rows = summed_rows(xp, rows.reshape(-1, cache.shape[1]), index, len(cache))
        results.append(rows.astype(cache.dtype, copy=False))
    return tuple(results)
