"""Blocks of a table come into huge pages once they have many rows; no value changes, and a kernel may refuse."""

from __future__ import annotations

import errno
import mmap

import numpy as np
import pytest

from weft_kvstore.arrays import HUGE_PAGE_BYTES
from weft_kvstore.rows import memory as rows_memory
from weft_kvstore.rows.memory import BLOCKS_AT_ONCE, ROWS_A_PAGE, SMALL_PAGE_BYTES, HugeBlocks
from weft_kvstore.rows.storage import TableRows

WIDTH = 64
A_BLOCK = HUGE_PAGE_BYTES // (4 * WIDTH)
MANY = ROWS_A_PAGE * HUGE_PAGE_BYTES // SMALL_PAGE_BYTES


class Mapping:
    """Remembers what the kernel is asked for."""

    def __init__(self, refuses: int | None = None) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self._refuses = refuses

    def madvise(self, advice: int, start: int, length: int) -> None:
        self.asked.append((advice, start, length))
        if self._refuses is not None:
            raise OSError(self._refuses, "refused")


def blocks_over(monkeypatch: pytest.MonkeyPatch, blocks: int, *mappings: Mapping) -> HugeBlocks:
    given = iter(mappings)
    monkeypatch.setattr(rows_memory, "_mapping_of", lambda _array: (next(given), 4096))
    return HugeBlocks([np.zeros((blocks * A_BLOCK, WIDTH), np.float32)] * len(mappings))


def test_a_block_is_brought_once_when_it_has_two_rows_for_each_small_page(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, state = Mapping(), Mapping()
    blocks = blocks_over(monkeypatch, 3, weight, state)
    rows = A_BLOCK + np.random.default_rng(0).permutation(A_BLOCK)
    blocks.add(rows[: MANY - 1])
    blocks.advance()
    assert weight.asked == []
    blocks.add(np.array([rows[MANY - 1], 0, 3 * A_BLOCK - 1]))
    blocks.advance()
    at = 4096 + HUGE_PAGE_BYTES
    assert weight.asked == state.asked == [(mmap.MADV_HUGEPAGE, at, HUGE_PAGE_BYTES), (25, at, HUGE_PAGE_BYTES)]
    blocks.add(rows[MANY:])
    blocks.advance()
    assert len(weight.asked) == 2


def test_some_blocks_are_brought_in_a_call_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = Mapping()
    blocks = blocks_over(monkeypatch, BLOCKS_AT_ONCE + 2, mapping)
    blocks.add(np.arange((BLOCKS_AT_ONCE + 2) * A_BLOCK))
    for asked in (BLOCKS_AT_ONCE, BLOCKS_AT_ONCE + 2, BLOCKS_AT_ONCE + 2):
        blocks.advance()
        assert len(mapping.asked) == 2 * asked


@pytest.mark.parametrize(("code", "asked"), [(errno.EINVAL, 1), (errno.EAGAIN, 2), (errno.ENOMEM, 2)])
def test_a_kernel_that_cannot_is_not_asked_again_and_one_that_has_no_memory_is(
    monkeypatch: pytest.MonkeyPatch, code: int, asked: int
) -> None:
    mapping = Mapping(code)
    blocks = blocks_over(monkeypatch, 2, mapping)
    blocks.add(np.arange(2 * A_BLOCK))
    for _ in range(2):
        blocks.advance()
    assert len(mapping.asked) == asked
    blocks.add(np.arange(2))  # Nothing is counted any more, or all of it was.
    blocks.advance()
    assert len(mapping.asked) == asked


def test_no_value_changes() -> None:
    rows = TableRows(WIDTH, np.dtype(np.float32), {"m": 0.0}, rows=3 * A_BLOCK)
    places = np.arange(0, 2 * A_BLOCK + 9)
    for first in (lambda some: np.repeat(some[:, None], WIDTH, axis=1).astype(np.float32), None):
        numbers = rows.find_or_add(places, 0, first)
        assert np.array_equal(rows.arrays.read(None, numbers)[:, 7], places)
        assert not rows.arrays.read("m", numbers).any()
