"""Applies a rule to some rows of a table, to the same bits however those rows are divided over calls and shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from weft_kernels.blocks import whole_blocks
from weft_kernels.kernel import Array
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
) -> None:
    """Updates the rows `places` (n,) int64 of `weight` and of each state (rows, width), in place, by a pointwise rule.

    `gradient` (n, width), which is not written, is of those rows alone. `places` are distinct and from 0; `step` and
    `hyper` are as in `weft_kernels.rules.record`. Raises ValueError for a rule that needs keys whole.
    """
    if rule.whole:
        raise ValueError(f"rule {rule.name!r} needs a key whole, and is asked to update {len(places)} rows")
    width = weight.shape[1]
    if not width:
        return
    piece = max(PIECE_ELEMENTS // width, 1)
    for begin in range(0, len(places), piece):
        some, part = places[begin : begin + piece], gradient[begin : begin + piece]
        gathered = {name: gathered_rows(array, some) for name, array in state.items()}
        moved, given = gathered_rows(weight, some), np.zeros(whole_blocks(part.size), part.dtype)
        given[: part.size] = part.reshape(-1)
        rule.apply(moved, given, gathered, step, hyper)
        for array, updated in ((weight, moved), *((state[name], gathered[name]) for name in state)):
            array[some] = updated[: part.size].reshape(part.shape)


def gathered_rows(array: Array, places: Array) -> Array:
    """Rows of (rows, width) one after the other, filled up to whole blocks by the first element: numbers that the rule
    meets anyway."""
    size = len(places) * array.shape[1]
    found = np.empty(whole_blocks(size), array.dtype)
    # `mode` is what lets NumPy write into `out` without a copy; no place is outside.
    np.take(array, places, axis=0, out=found[:size].reshape(len(places), array.shape[1]), mode="clip")
    found[size:] = found[0]
    return found
