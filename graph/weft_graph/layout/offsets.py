"""Where in one piece of memory the blocks of a step lie, so that those held at one time do not overlap.

Greedy by size with the tightest gap: Y. Pisarchyk and J. Lee, "Efficient memory management for deep neural net
inference", 2020, arXiv:2001.03288, section 5. Finding the least size is NP-hard; the largest blocks are what decides,
and the small ones fit between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np


@dataclass(frozen=True, slots=True)
class Block:
    """`size` bytes that are held from node `first` to node `last`, both included."""

    size: int
    first: int
    last: int


Order = Callable[[Block], tuple[int, ...]]

_ORDERS: Final[tuple[Order, ...]] = (
    lambda block: (-block.size, block.first),
    lambda block: (-block.size * (block.last - block.first + 1), block.first),
    lambda block: (block.first - block.last, -block.size),
)
"""In which order blocks are placed; the second and third are tried where the first wastes more than `GOOD_WASTE`."""

GOOD_WASTE: Final = 0.02
MOST_FITTED: Final = 1 << 13
"""Blocks that are fitted among each other, the largest: the time that it takes grows with their square."""
MOST_BYTES: Final = 1 << 62


def largest_live(blocks: Sequence[Block]) -> int:
    """The most bytes that are held at one time: no placement takes less."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    live = most = 0
    for moment in sorted(changes):
        live += changes[moment]
        most = max(most, live)
    return most


def offsets(blocks: Sequence[Block], alignment: int) -> tuple[list[int], int]:
    """(offset of each block, bytes in all). Every offset is a multiple of `alignment`."""
    if sum(block.size for block in blocks) > MOST_BYTES:
        return _side_by_side(blocks, alignment)
    fitted = sorted(range(len(blocks)), key=lambda index: -blocks[index].size)[:MOST_FITTED]
    result, whole = [0] * len(blocks), 0
    if fitted:
        placed, whole = _fitted([blocks[index] for index in fitted], alignment)
        for index, offset in zip(fitted, placed, strict=True):
            result[index] = offset
    chosen = set(fitted)
    rest = [index for index in range(len(blocks)) if index not in chosen]
    return result, _by_classes(blocks, rest, alignment, result, whole)


def _side_by_side(blocks: Sequence[Block], alignment: int) -> tuple[list[int], int]:
    """As if all were held at once: for sizes that no machine has."""
    ends = list(accumulate((_aligned(block.size, alignment) for block in blocks), initial=0))
    return ends[:-1], ends[-1]


def _fitted(blocks: Sequence[Block], alignment: int) -> tuple[list[int], int]:
    enough = largest_live(blocks) * (1 + GOOD_WASTE)
    best: tuple[list[int], int] | None = None
    for order in _ORDERS:
        found = _placed(blocks, order, alignment)
        best = found if best is None or found[1] < best[1] else best
        if best[1] <= enough:
            break
    assert best is not None
    return best


def _by_classes(blocks: Sequence[Block], rest: Sequence[int], alignment: int, result: list[int], whole: int) -> int:
    """Places what is left of very many blocks behind the others: a place that is free again serves blocks of up to its
    size, a power of two. Returns the bytes in all."""
    free: dict[int, list[int]] = {}
    busy: list[tuple[int, int, int]] = []
    for index in sorted(rest, key=lambda index: blocks[index].first):
        block = blocks[index]
        while busy and busy[0][0] < block.first:
            _, size, offset = heapq.heappop(busy)
            free.setdefault(size, []).append(offset)
        size = _aligned(1 << max(block.size - 1, 0).bit_length(), alignment)
        if free.get(size):
            result[index] = free[size].pop()
        else:
            result[index], whole = whole, whole + size
        heapq.heappush(busy, (block.last, size, result[index]))
    return whole


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _placed(blocks: Sequence[Block], order: Order, alignment: int) -> tuple[list[int], int]:
    result = [0] * len(blocks)
    first, last, start, end = (np.empty(len(blocks), np.int64) for _ in range(4))
    whole = 0
    for count, index in enumerate(sorted(range(len(blocks)), key=lambda index: order(blocks[index]))):
        block = blocks[index]
        beside = (first[:count] <= block.last) & (last[:count] >= block.first)
        offset = _tightest_gap(start[:count][beside], end[:count][beside], block.size, alignment)
        result[index] = offset
        first[count], last[count] = block.first, block.last
        start[count], end[count] = offset, offset + _aligned(block.size, alignment)
        whole = max(whole, int(end[count]))
    return result, whole


def _tightest_gap(start: np.ndarray, end: np.ndarray, size: int, alignment: int) -> int:
    """The place between what lies from `start` to `end` that leaves least over, else the place behind it all."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    covered = np.maximum.accumulate(end[order])
    begins = np.concatenate((np.zeros(1, np.int64), covered))
    room = np.append(start[order] - begins[:-1], np.iinfo(np.int64).max)
    fits = np.where(room >= size, room, np.iinfo(np.int64).max)
    return int(begins[int(np.argmin(fits))]) if fits.min() < np.iinfo(np.int64).max else int(covered[-1])
