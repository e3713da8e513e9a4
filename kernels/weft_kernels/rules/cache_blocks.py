"""Cuts the arrays of an update into blocks that stay in a core's caches: each array crosses memory once a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.kernel import Array


def cache_blocks(arrays: Sequence[Array], elements: int | None = None) -> Iterator[tuple[Array, ...]]:
    """Views of the same `elements` elements of each array (`CACHE_ELEMENTS`), one after the other; the last ones may be
    fewer.

    All arrays are of one shape. Where one is not in one piece, they come as they are, once.
    """
    if not all(array.flags.c_contiguous for array in arrays):
        yield tuple(arrays)
        return
    flat, elements = [array.reshape(-1) for array in arrays], elements or CACHE_ELEMENTS
    for start in range(0, flat[0].size, elements):
        yield tuple([array[start : start + elements] for array in flat])
