"""Blocks of a table come into huge pages once their rows are there; no value changes, and a kernel may refuse."""

from __future__ import annotations

import errno
import mmap
from typing import Any

import numpy as np
import pytest

from weft_kvstore.arrays import HUGE_PAGE_BYTES, zeros_on_demand
from weft_kvstore.rows import memory as rows_memory
from weft_kvstore.rows.memory import BLOCKS_AT_ONCE, PAGE_BYTES, HugeBlocks
from weft_kvstore.rows.storage import FixedRows

WIDTH = 256
A_BLOCK = HUGE_PAGE_BYTES // (4 * WIDTH)
A_PAGE = PAGE_BYTES // (4 * WIDTH)
FULL = A_BLOCK // A_PAGE * 7 // 8


class Mapping:
    """What a block's place in memory is asked for."""

    def __init__(self, refuses: int | None = None) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self._refuses = refuses

    def madvise(self, advice: int, start: int, length: int) -> None:
        self.asked.append((advice, start, length))
        if self._refuses is not None:
            raise OSError(self._refuses, "refused")


def blocks_over(monkeypatch: pytest.MonkeyPatch, blocks: int, *mappings: Mapping) -> HugeBlocks:
    given = iter(mappings)
    monkeypatch.setattr(rows_memory, "_is_wanted", lambda: True)
    monkeypatch.setattr(rows_memory, "_mapping_of", lambda _array: (next(given), 4096))
    return HugeBlocks([np.zeros((blocks * A_BLOCK, WIDTH), np.float32)] * len(mappings))


def test_a_block_is_brought_once_when_seven_eighths_of_its_pages_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, state = Mapping(), Mapping()
    blocks = blocks_over(monkeypatch, 3, weight, state)
    draw = np.random.default_rng(0)
    rows = A_BLOCK + draw.permutation(A_BLOCK // A_PAGE) * A_PAGE + draw.integers(0, A_PAGE, A_BLOCK // A_PAGE)
    blocks.came(np.arange(10))
    blocks.came(rows[: FULL - 1])
    blocks.came(rows[: FULL - 1] // A_PAGE * A_PAGE)  # Others of the same pages.
    assert not blocks.waiting
    blocks.came(np.array([*rows[FULL - 1 : FULL], 3 * A_BLOCK - 1, 3 * A_BLOCK]))
    assert blocks.waiting
    blocks.advance()
    assert not blocks.waiting
    place = 4096 + HUGE_PAGE_BYTES
    assert weight.asked == state.asked == [(mmap.MADV_HUGEPAGE, place, HUGE_PAGE_BYTES), (25, place, HUGE_PAGE_BYTES)]
    blocks.came(rows[FULL:])
    assert not blocks.waiting


def test_some_blocks_are_brought_at_a_time_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = Mapping()
    blocks = blocks_over(monkeypatch, BLOCKS_AT_ONCE + 2, mapping)
    blocks.came(np.arange((BLOCKS_AT_ONCE + 2) * A_BLOCK))
    blocks.advance()
    assert len(mapping.asked) == 2 * BLOCKS_AT_ONCE
    assert blocks.waiting
    blocks.advance()
    assert len(mapping.asked) == 2 * (BLOCKS_AT_ONCE + 2)
    assert not blocks.waiting


@pytest.mark.parametrize(("code", "asked"), [(errno.EINVAL, 1), (errno.EAGAIN, 2), (errno.ENOMEM, 2)])
def test_a_kernel_that_cannot_is_not_asked_again_and_one_that_has_none_goes_on(
    monkeypatch: pytest.MonkeyPatch, code: int, asked: int
) -> None:
    mapping = Mapping(code)
    blocks = blocks_over(monkeypatch, 2, mapping)
    blocks.came(np.arange(2 * A_BLOCK))
    blocks.advance()
    assert len(mapping.asked) == asked
    assert not blocks.waiting
    blocks.came(np.arange(2 * A_BLOCK))
    assert not blocks.waiting


@pytest.mark.parametrize("array", [np.zeros((9, 4), np.float32), zeros_on_demand((1 << 20, 0), "float32")])
def test_an_array_that_has_no_blocks_is_left_alone(array: Any) -> None:
    blocks = HugeBlocks([array])
    blocks.came(np.arange(5))
    assert not blocks.waiting


def test_no_value_changes() -> None:
    rows = FixedRows(3 * A_BLOCK, WIDTH, np.dtype(np.float32), {"m": 0.0})
    places = np.arange(0, 2 * A_BLOCK + 9)
    numbers = rows.bring(places, 0, lambda some: np.repeat(some[:, None], WIDTH, axis=1).astype(np.float32))
    for _ in range(2):
        rows.bring(places, 1, None)
        assert np.array_equal(rows.arrays.read(None, numbers)[:, 7], places)
        assert not rows.arrays.read("m", numbers).any()
    assert rows.arrays.mapped[0].ctypes.data % HUGE_PAGE_BYTES == 0
