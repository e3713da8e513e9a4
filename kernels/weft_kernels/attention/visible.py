"""Which keys a query attends to: by a mask, by causality, by a window and by the counts of keys that are no padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the scores: some samples, heads of keys, queries and keys; every head of a group."""

    batches: slice
    heads: slice
    queries: slice
    keys: slice


@dataclass(frozen=True, slots=True, eq=False)
class Visible:
    """A query's place is its number plus `offset`, the keys before the first query: one number, or one a sample.

    `mask` is (batch or 1, kv heads or 1, group or 1, queries or 1, keys), of bool or numbers; `counts` (batch) are on
    the host. A window reaches from `left` keys before the query's place to `right` after it; None is no bound.
    """

    mask: Array | None
    counts: Array | None
    offset: int | Array
    left: int | None
    right: int | None

    @property
    def is_banded(self) -> bool:
        """Whether the places of query and key bound each other."""
        return self.left is not None or self.right is not None

    def keys(self, block: Block) -> slice:
        """Of the block's keys, those from the first to the last that any of its queries may attend to."""
        low, high = block.keys.start, block.keys.stop
        if self.mask is not None:
            high = min(high, self.mask.shape[-1])
        if self.counts is not None:
            high = min(high, int(self.counts[block.batches].max()))
        offsets = np.atleast_1d(self.offset)[block.batches if np.ndim(self.offset) else slice(None)]
        if self.right is not None:
            high = min(high, block.queries.stop + int(offsets.max()) + self.right)
        if self.left is not None:
            low = max(low, block.queries.start + int(offsets.min()) - self.left)
        return slice(low, max(low, high))

    def added(self, xp: Any, block: Block, dtype: Any) -> Array | None:
        """What the mask adds to the block's scores; None where it has no numbers. Broadcasts to the scores."""
        if self.mask is None or self.mask.dtype == xp.bool_:
            return None
        return _part(self.mask, block).astype(dtype, copy=False)

    def allowed(self, xp: Any, block: Block) -> Array | None:
        """Where queries of the block may attend; None is everywhere. Broadcasts to the scores."""
        found = [self._by_mask(xp, block), self._by_place(xp, block), self._by_count(xp, block)]
        parts = [part for part in found if part is not None]
        result = parts[0] if parts else None
        for part in parts[1:]:
            result = result & part
        return result

    def _by_mask(self, xp: Any, block: Block) -> Array | None:
        if self.mask is None:
            return None
        part: Array | None = _part(self.mask, block)
        if self.mask.dtype != xp.bool_:
            # Minus infinity hides a key whatever its score is, also one that is no number.
            part = _part(self.mask, block) != -np.inf if self.mask.dtype.kind not in "iu" else None
        missing = block.keys.stop - max(self.mask.shape[-1], block.keys.start)
        if missing <= 0:
            return part
        lead = (1,) * 4 if part is None else part.shape[:-1]
        seen = xp.ones((*lead, block.keys.stop - block.keys.start - missing), dtype=bool) if part is None else part
        return xp.concatenate((seen, xp.zeros((*lead, missing), dtype=bool)), axis=-1)  # type: ignore[no-any-return]  # xp is Any

    def _by_place(self, xp: Any, block: Block) -> Array | None:
        if not self.is_banded:
            return None
        queries = xp.arange(block.queries.start, block.queries.stop)[:, None]
        keys = xp.arange(block.keys.start, block.keys.stop)
        if isinstance(self.offset, int):
            ahead: Array = keys - (queries + self.offset)
        else:
            ahead = keys - queries - xp.asarray(self.offset[block.batches]).reshape(-1, 1, 1, 1, 1)
        result = None if self.right is None else ahead <= self.right
        if self.left is None:
            return result
        behind: Array = ahead >= -self.left
        return behind if result is None else result & behind

    def _by_count(self, xp: Any, block: Block) -> Array | None:
        if self.counts is None:
            return None
        keys = xp.arange(block.keys.start, block.keys.stop)
        return keys < xp.asarray(self.counts[block.batches]).reshape(-1, 1, 1, 1, 1)  # type: ignore[no-any-return]  # xp is Any


def visible_of(
    attributes: Mapping[str, AttributeValue], mask: Array | None, counts: Array | None, dims: tuple[int, int, int, int]
) -> Visible:
    """`dims` are heads, kv heads, queries and keys of the cache. Raises ValueError for a count below 0."""
    heads, kv_heads, queries, past = dims
    if counts is not None and counts.size and counts.min() < 0:
        raise ValueError(f"nonpad_kv_seqlen holds {int(counts.min())}, and counts keys")
    bounds = (as_int(attributes[name]) for name in ("left_window_size", "right_window_size"))
    left, right = (None if bound < 0 else bound for bound in bounds)
    if as_int(attributes["is_causal"]):
        right = 0
    offset = past if counts is None else counts - queries
    return Visible(None if mask is None else _by_group(mask, heads, kv_heads), counts, offset, left, right)


def _by_group(mask: Array, heads: int, kv_heads: int) -> Array:
    """A mask that broadcasts to (batch, heads, queries, keys) with its heads by groups."""
    whole = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    split = (kv_heads, heads // kv_heads) if whole.shape[1] != 1 else (1, 1)
    return whole.reshape(whole.shape[0], *split, *whole.shape[2:])


def place_in(array: Array, block: Block) -> tuple[slice, ...]:
    """Where the block is in an array that broadcasts to the scores; what has 1 for all of them is taken whole."""
    wanted = (block.batches, block.heads, slice(None), block.queries)
    whole = slice(None)
    lead = tuple(whole if size == 1 else part for size, part in zip(array.shape, wanted, strict=False))
    return (*lead, block.keys)


def _part(array: Array, block: Block) -> Array:
    return array[place_in(array, block)]
