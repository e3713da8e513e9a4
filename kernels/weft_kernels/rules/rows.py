"""Applies a rule to some rows of a table, to the same bits however those rows are divided over calls and shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS, FUSED_ELEMENTS, whole_blocks
from weft_kernels.kernel import Array
from weft_kernels.row_copies import put_rows, take_rows
from weft_kernels.rules.record import Hyper, Rule

PIECE_ELEMENTS: Final = 1 << 18
"""Elements gathered at once: copies of weight, gradient and state are bounded, and a rule's calls are few."""


def apply_to_rows(
    rule: Rule,
    weight: Array,
    gradient: Array,
    state: Mapping[str, Array],
    places: Array,
    *,
    step: int,
    hyper: Hyper,
    out: Array | None = None,
) -> None:
    """Updates the rows `places` (n,) int64 of `weight` and of each state (rows, width), in place, by a pointwise rule.

    `gradient` (n, width) is of those rows alone; where it is writeable it may be written. `places` are distinct and
    from 0; `step` and `hyper` are as in `weft_kernels.rules.record`. The updated rows of the weight are written to
    `out` (n, width) too, where it is given. Raises ValueError for a rule that needs keys whole.
    """
    if rule.whole:
        raise ValueError(f"rule {rule.name!r} needs a key whole, and is asked to update {len(places)} rows")
    if not weight.shape[1]:
        return
    if rule.anywhere and gradient.flags.c_contiguous:
        update, elements = rule.apply, CACHE_ELEMENTS
        if rule.apply_over is not None and gradient.flags.writeable:
            update, elements = rule.apply_over, FUSED_ELEMENTS
        arrays = (weight, *state.values())
        piece = max(elements // (weight.shape[1] * len(arrays)), 1)
        piece = -(-len(places) // max(round(len(places) / piece), 1)) or 1  # Alike, and none of a few rows.
        # Gathered, updated and put back before they leave the cache, and the gradient is read where it is.
        room = [np.empty((min(piece, len(places)), weight.shape[1]), array.dtype) for array in arrays]
        for begin in range(0, len(places), piece):
            some = places[begin : begin + piece]
            taken = [one[: len(some)] for one in room]
            if out is not None:
                taken[0] = out[begin : begin + piece]
            for array, one in zip(arrays, taken, strict=True):
                take_rows(array, some, one)
            update(taken[0], gradient[begin : begin + piece], dict(zip(state, taken[1:], strict=True)), step, hyper)
            for array, one in zip(arrays, taken, strict=True):
                put_rows(array, some, one)
        return
    piece = max(PIECE_ELEMENTS // weight.shape[1], 1)
    for begin in range(0, len(places), piece):
        some, part = places[begin : begin + piece], gradient[begin : begin + piece]
        gathered = {name: gathered_rows(array, some) for name, array in state.items()}
        moved, given = gathered_rows(weight, some), np.empty(whole_blocks(part.size), part.dtype)
        given[: part.size] = part.reshape(-1)
        given[part.size :] = 0
        rule.apply(moved, given, gathered, step, hyper)
        for array, updated in ((weight, moved), *((state[name], gathered[name]) for name in state)):
            put_rows(array, some, updated[: part.size].reshape(part.shape))
        if out is not None:
            out[begin : begin + piece] = moved[: part.size].reshape(part.shape)


def gathered_rows(array: Array, places: Array) -> Array:
    """Rows of (rows, width) one after the other, filled up to whole blocks by the first element: numbers that the rule
    meets anyway."""
    size = len(places) * array.shape[1]
    found = np.empty(whole_blocks(size), array.dtype)
    # `mode` is what lets NumPy write into `out` without a copy; no place is outside.
    np.take(array, places, axis=0, out=found[:size].reshape(len(places), array.shape[1]), mode="clip")
    found[size:] = found[0]
    return found
