"""Attention without the whole matrix of scores: blocks of queries, and the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array
from weft_kernels.products import sum_stack

# ----------------------------------------------------------------------------------------------------------------------
# Which keys a query attends to: by a mask, by causality, by a window and by the counts of keys that are no padding.


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


# --- Queries, keys and values by head, and the settings that every block is computed with -----------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """q (batch, kv heads, group, queries, size), k (batch, kv heads, 1, keys, size), v (..., 1, keys, value size).

    A group is the heads of queries that share a head of keys. All three may be views of what they were made of.
    """

    q: Array
    k: Array
    v: Array


@dataclass(frozen=True, slots=True)
class Settings:
    """`precision` is the type that softmax rounds to, None where it is the one of the products."""

    scale: float
    softcap: float = 0.0
    precision: Any = None


def settings_of(attributes: Mapping[str, AttributeValue], size: int) -> Settings:
    """The settings of a node whose heads have `size` elements."""
    scale = attributes.get("scale")
    precision = attributes.get("softmax_precision")
    return Settings(
        scale=1 / math.sqrt(size) if scale is None else as_float(scale),
        softcap=as_float(attributes.get("softcap", 0.0)),
        precision=None if precision is None else DTYPE_OF_NUMBER[as_int(precision)].numpy,
    )


def by_head(array: Array, heads: AttributeValue | None) -> Array:
    """(batch, heads, length, size), a view: of that, or of (batch, length, heads * size)."""
    if array.ndim == 4:
        return array
    count = as_int(heads)
    return array.reshape(*array.shape[:2], count, array.shape[2] // count).transpose(0, 2, 1, 3)


def joined(array: Array, rank: int) -> Array:
    """An array by head as an output of `rank` dimensions: the other way of `by_head`."""
    if rank == 4:
        return array
    batch, heads, length, size = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def empty_like_output(xp: Any, shape: tuple[int, ...], rank: int, dtype: Any) -> tuple[Array, Array]:
    """(the output, its view by head): a new array, whose heads are joined where `rank` is 3."""
    batch, heads, length, size = shape
    whole = xp.zeros(shape if rank == 4 else (batch, length, heads * size), dtype=dtype)
    return whole, by_head(whole, heads)


def with_past(xp: Any, past: Array | None, new: Array) -> Array:
    """The cache's part, then the new one, along the length."""
    return new if past is None else xp.concatenate((past, new), axis=2)


def grouped(array: Array, kv_heads: int) -> Array:
    """(batch, heads, length, size) as (batch, kv heads, group, length, size), a view."""
    group = array.shape[1] // kv_heads if kv_heads else 0
    return array.reshape(array.shape[0], kv_heads, group, *array.shape[2:])


def wide_dtype(xp: Any, array: Array) -> Any:
    """The type that products are computed in: at least float32."""
    return statistics_dtype(xp, array)


# --- How the scores of all queries and keys are cut into blocks -------------------------------------------------------


HOST_SCORES: Final = 1 << 18
"""Scores of a block, unless one query of a group has more: 1 MiB of float32, what a core's caches hold."""

DEVICE_SCORES: Final = 1 << 25
"""On a device a block must be large, for each one starts kernels: 128 MiB of float32."""

BANDED_QUERIES: Final = 128
"""Queries of a block at most where each sees but a part of the keys, so that what none of them sees is left out."""


def blocks(xp: Any, shape: tuple[int, ...], *, banded: bool) -> Iterator[Block]:
    """Blocks that cover scores of `shape` (batch, kv heads, group, queries, keys) once.

    Whole samples where several fit, else whole heads of one sample, else queries of one head.
    """
    batch, heads, group, queries, keys = shape
    rows = max(1, (HOST_SCORES if xp is np else DEVICE_SCORES) // max(1, group * keys))
    length = min(queries, rows, BANDED_QUERIES if banded else queries)
    heads_at_once = max(1, min(heads, rows // max(1, length)))
    batches_at_once = max(1, rows // max(1, length * heads)) if heads_at_once == heads else 1
    for first in range(0, batch, batches_at_once):
        for head in range(0, heads, heads_at_once):
            for query in range(0, queries, max(1, length)):
                yield Block(
                    slice(first, min(first + batches_at_once, batch)),
                    slice(head, min(head + heads_at_once, heads)),
                    slice(query, min(query + length, queries)),
                    slice(0, keys),
                )


# --- Attention block by block: scores, probabilities, and values weighed by them --------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A block's scores on their way: products, then capped, then with the bias, then probabilities; all of them wide.

    `capped` is `raw` where nothing caps. They are kept apart only where `every` of them is asked for.
    """

    raw: Array
    capped: Array
    biased: Array
    probabilities: Array


@dataclass(frozen=True, slots=True, eq=False)
class Attending:
    """What every block is computed from."""

    xp: Any
    heads: Heads
    visible: Visible
    settings: Settings

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, kv heads, group, queries, keys)."""
        return (*self.heads.q.shape[:4], self.heads.k.shape[3])

    @property
    def wide(self) -> Any:
        return wide_dtype(self.xp, self.heads.q)

    def queries(self, block: Block) -> Array:
        return self.heads.q[block.batches, block.heads, :, block.queries].astype(self.wide, copy=False)

    def keys(self, block: Block) -> Array:
        return self.heads.k[block.batches, block.heads, :, block.keys].astype(self.wide, copy=False)

    def values(self, block: Block) -> Array:
        return self.heads.v[block.batches, block.heads, :, block.keys].astype(self.wide, copy=False)

    def products(self) -> Array:
        """Of all queries and keys, scaled: like the scores."""
        batch, heads, _, queries, keys = self.shape
        return self._products(Block(slice(0, batch), slice(0, heads), slice(0, queries), slice(0, keys)))

    def scores(self, block: Block, *, every: bool = False) -> Scores:
        """The block's scores; without `every` all but the last two may be the same array, overwritten."""
        xp, cap = self.xp, self.settings.softcap
        raw = self._products(block)
        capped = raw if cap == 0 else xp.tanh(raw / cap) * cap
        biased = self._biased(block, capped.copy() if every else capped)
        return Scores(raw, capped, biased, self._probabilities(biased.copy() if every else biased))

    def _products(self, block: Block) -> Array:
        scaled = self.queries(block) * self.settings.scale
        return self.xp.matmul(scaled, self.keys(block).swapaxes(-1, -2))  # type: ignore[no-any-return]  # xp is Any

    def _biased(self, block: Block, scores: Array) -> Array:
        """`scores`, written in place, and minus infinity where a query must not look."""
        added, allowed = self.visible.added(self.xp, block, scores.dtype), self.visible.allowed(self.xp, block)
        if added is not None:
            width = added.shape[-1]  # a mask may be shorter than the keys
            scores[..., :width] += added
        return scores if allowed is None else self.xp.where(allowed, scores, scores.dtype.type(-np.inf))

    def _probabilities(self, scores: Array) -> Array:
        if self.settings.precision is None:
            return shown_softmax(self.xp, scores)
        rounded = scores.astype(self.settings.precision, copy=False)
        wide = rounded.astype(statistics_dtype(self.xp, rounded), copy=False)
        return shown_softmax(self.xp, wide).astype(rounded.dtype, copy=False).astype(self.wide, copy=False)


def shown_softmax(xp: Any, scores: Array) -> Array:
    """Softmax of the rows, in place; 0 in those that are minus infinity throughout."""
    if scores.size == 0:
        return scores
    largest = scores.max(axis=-1, keepdims=True)
    scores -= xp.where(largest == -np.inf, scores.dtype.type(0), largest)
    xp.exp(scores, out=scores)
    sums = scores.sum(axis=-1, keepdims=True, dtype=scores.dtype)
    scores /= xp.where(sums == 0, scores.dtype.type(1), sums)
    return scores


def attend(attending: Attending, out: Array, shown: Array | None = None, mode: int = 0) -> None:
    """Fills `out` (batch, kv heads, group, queries, value size), and `shown`, like the scores, by the mode.

    `out` is zeros before. Modes are those of qk_matmul_output_mode: products, capped, with the bias, probabilities.
    """
    banded = attending.visible.is_banded and shown is None
    for whole in blocks(attending.xp, attending.shape, banded=banded):
        block = whole if shown is not None else _narrowed(attending, whole)
        if block.keys.start == block.keys.stop:
            continue
        scores = attending.scores(block, every=shown is not None)
        place = (block.batches, block.heads, slice(None), block.queries)
        out[place] = attending.xp.matmul(scores.probabilities, attending.values(block))
        if shown is not None:
            shown[place] = (scores.raw, scores.capped, scores.biased, scores.probabilities)[mode]


def _narrowed(attending: Attending, block: Block) -> Block:
    return Block(block.batches, block.heads, block.queries, attending.visible.keys(block))


# --- Attention's gradients block by block: probabilities are computed again from queries and keys ---------------------


@dataclass(frozen=True, slots=True, eq=False)
class Flowing:
    """Gradients that come in, by head as what they are of; `shown` is that of the scores which `mode` shows."""

    out: Array | None
    shown: Array | None
    mode: int


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Gradients that are added up over the blocks, each like what it is of: q, k, v of `Heads` and the mask."""

    q: Array
    k: Array
    v: Array
    mask: Array | None


def attend_backward(attending: Attending, flowing: Flowing, gathered: Gathered) -> None:
    """Adds to `gathered`, all of whose arrays are wide."""
    banded = attending.visible.is_banded and flowing.shown is None
    for whole in blocks(attending.xp, attending.shape, banded=banded):
        keys = whole.keys if flowing.shown is not None else attending.visible.keys(whole)
        if keys.start < keys.stop:
            _add_block(attending, Block(whole.batches, whole.heads, whole.queries, keys), flowing, gathered)


def _add_block(attending: Attending, block: Block, flowing: Flowing, gathered: Gathered) -> None:
    xp, scale = attending.xp, attending.settings.scale
    rows = (block.batches, block.heads, slice(None), block.queries)
    columns = (block.batches, block.heads, slice(None), block.keys)
    out = None if flowing.out is None else flowing.out[rows].astype(attending.wide, copy=False)
    shown = None if flowing.shown is None else flowing.shown[rows].astype(attending.wide, copy=False)
    by_mode = [shown if mode == flowing.mode else None for mode in range(4)]
    scores = attending.scores(block, every=attending.settings.softcap != 0)
    by_biased = _by_biased(attending, block, scores.probabilities, (out, by_mode[2], by_mode[3]))
    if out is not None:
        _add_group(gathered.v[columns], xp.matmul(scores.probabilities.swapaxes(-1, -2), out))
    if gathered.mask is not None:
        part = gathered.mask[place_in(gathered.mask, block)]
        part += sum_stack(xp, by_biased[..., : part.shape[-1]], part.shape)
    by_raw = _by_raw(attending.settings.softcap, scores.capped, by_biased, (by_mode[0], by_mode[1]))
    gathered.q[rows] = xp.matmul(by_raw, attending.keys(block)) * scale
    _add_group(gathered.k[columns], xp.matmul(by_raw.swapaxes(-1, -2), attending.queries(block)) * scale)


def _by_biased(
    attending: Attending, block: Block, probabilities: Array, flowing: tuple[Array | None, Array | None, Array | None]
) -> Array:
    """The gradient of the scores with the bias, from those of the output, of these scores and of probabilities."""
    xp = attending.xp
    out, of_biased, of_probabilities = flowing
    result = xp.zeros_like(probabilities)
    if out is not None:
        result = xp.matmul(out, attending.values(block).swapaxes(-1, -2))
    if of_probabilities is not None:
        result += of_probabilities
    result *= probabilities
    result -= probabilities * result.sum(axis=-1, keepdims=True, dtype=result.dtype)
    if of_biased is not None:
        allowed = attending.visible.allowed(xp, block)
        result += of_biased if allowed is None else xp.where(allowed, of_biased, of_biased.dtype.type(0))
    return result  # type: ignore[no-any-return]  # xp is Any


def _by_raw(cap: float, capped: Array, by_biased: Array, flowing: tuple[Array | None, Array | None]) -> Array:
    """The gradient of the products, from those of the scores with the bias, of the products and of the capped ones."""
    of_raw, of_capped = flowing
    result = by_biased if of_capped is None else by_biased + of_capped
    if cap != 0:
        level = capped / cap
        result = result * (1 - level * level)
    return result if of_raw is None else result + of_raw


def _add_group(target: Array, products: Array) -> None:
    """Adds up what the heads of a group give their one head of keys."""
    target += products if products.shape[2] == 1 else products.sum(axis=2, keepdims=True, dtype=products.dtype)
