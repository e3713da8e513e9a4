"""Attention's gradients block by block: probabilities are computed again from queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

from weft_kernels.attention.blocks import blocks
from weft_kernels.attention.forward import Attending
from weft_kernels.attention.visible import Block, place_in
from weft_kernels.kernel import Array
from weft_kernels.products.matrix import sum_stack


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
