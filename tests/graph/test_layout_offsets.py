"""Blocks that are held at one time do not overlap, and little is wasted."""

from __future__ import annotations

import numpy as np
import pytest

from weft_graph.layout.plan import Block, largest_live, offsets


def drawn(count: int, seed: int) -> list[Block]:
    """Blocks of a training step's kind: some live long, most do not, a few are large."""
    draw = np.random.default_rng(seed)
    first = draw.integers(0, count, count)
    last = first + np.where(draw.random(count) < 0.3, draw.integers(0, count, count), draw.integers(0, 4, count))
    size = (2.0 ** draw.uniform(0, 20, count)).astype(int)
    return [Block(int(s), int(f), int(n)) for s, f, n in zip(size, first, last, strict=True)]


def check(blocks: list[Block], alignment: int) -> int:
    """Holds every two blocks against each other; returns the bytes in all."""
    placed, whole = offsets(blocks, alignment)
    for index, (block, offset) in enumerate(zip(blocks, placed, strict=True)):
        assert offset % alignment == 0
        assert offset + block.size <= whole
        for other, at in zip(blocks[:index], placed, strict=False):
            if block.first <= other.last and other.first <= block.last:
                assert offset + block.size <= at or at + other.size <= offset
    return whole


@pytest.mark.parametrize("seed", range(5))
def test_what_is_held_at_one_time_does_not_overlap(seed: int) -> None:
    blocks = drawn(200, seed)
    assert largest_live(blocks) <= check(blocks, 64) <= 1.1 * largest_live(blocks) + 64 * len(blocks)


def test_very_many_blocks_are_placed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_graph.layout.plan.MOST_FITTED", 20)
    blocks = drawn(200, 7)
    assert check(blocks, 256) < sum(block.size for block in blocks)


def test_sizes_beyond_any_machine_lie_side_by_side() -> None:
    assert offsets([Block(1 << 62, 0, 0), Block(1 << 62, 1, 1)], 64) == ([0, 1 << 62], 1 << 63)


def test_nothing_takes_nothing() -> None:
    assert offsets([], 64) == ([], 0)
    assert largest_live([]) == 0
