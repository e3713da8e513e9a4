"""Attention block by block: scores, probabilities, and values weighed by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_kernels.attention.blocks import blocks
from weft_kernels.attention.heads import Heads, Settings, wide_dtype
from weft_kernels.attention.visible import Block, Visible
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array


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
