"""A table that has nearly all its rows comes into huge pages; no value changes, and a kernel may refuse."""

from __future__ import annotations

import errno
import mmap

import numpy as np
import pytest

from weft_kvstore.rows.growing_array import HUGE_PAGE_BYTES, HUGE_PAGES_AT_ONCE, GrowingArray
from weft_kvstore.rows.storage import RowStorage

WIDTH = 64
A_BLOCK = HUGE_PAGE_BYTES // (4 * WIDTH)


class Mapping:
    """Remembers what the kernel is asked for."""

    def __init__(self, refuses: int | None = None) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self._refuses = refuses

    def madvise(self, advice: int, start: int, length: int) -> None:
        self.asked.append((advice, start, length))
        if self._refuses is not None:
            raise OSError(self._refuses, "refused")


def mapped(rows: int, mapping: Mapping) -> GrowingArray:
    """An array of so many rows, of whose mapping nothing is asked but of this."""
    array = GrowingArray(WIDTH, np.float32, rows=rows)
    assert array.array.ctypes.data % HUGE_PAGE_BYTES == 0
    array._mapped, array._begin = mapping, 4096  # type: ignore[assignment]
    return array


def test_whole_blocks_are_brought_and_some_in_a_turn() -> None:
    mapping, asked = Mapping(), []
    for _ in mapped((HUGE_PAGES_AT_ONCE + 2) * A_BLOCK + 1, mapping).to_huge_pages():
        asked.append([*mapping.asked])
        mapping.asked.clear()
    turns = [
        (4096, HUGE_PAGES_AT_ONCE * HUGE_PAGE_BYTES),
        (4096 + HUGE_PAGES_AT_ONCE * HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES),
    ]
    assert asked == [[(advice, at, size) for advice in (mmap.MADV_HUGEPAGE, 25)] for at, size in turns]


@pytest.mark.parametrize(("code", "asked"), [(errno.EINVAL, 1), (errno.EAGAIN, 2), (errno.ENOMEM, 2)])
def test_a_kernel_that_cannot_is_not_asked_again_and_one_that_has_no_memory_is(code: int, asked: int) -> None:
    mapping = Mapping(code)
    for _ in mapped(2 * HUGE_PAGES_AT_ONCE * A_BLOCK, mapping).to_huge_pages():
        pass
    assert len(mapping.asked) == asked


def test_a_table_is_brought_there_once_it_has_nearly_all_rows() -> None:
    mapping, count = Mapping(), 2 * HUGE_PAGES_AT_ONCE * A_BLOCK
    rows, seen = RowStorage(WIDTH, np.dtype(np.float32), {}, rows=count), []
    rows.arrays._arrays[None] = mapped(count, mapping)
    for stop in (count // 2, count - 1, count, count, count):
        rows.find_or_add(np.arange(stop), 0, None)
        seen.append((len(mapping.asked), rows.is_full))
    assert seen == [(0, False), (2, False), (4, False), (4, True), (4, True)]


def test_no_value_changes() -> None:
    rows = RowStorage(WIDTH, np.dtype(np.float32), {"m": 0.0}, rows=3 * A_BLOCK)
    places = np.arange(0, 3 * A_BLOCK)
    for first in (lambda some: np.repeat(some[:, None], WIDTH, axis=1).astype(np.float32), None, None):
        numbers = rows.find_or_add(places, 0, first)
        assert np.array_equal(rows.arrays.read(None, numbers)[:, 7], places)
        assert not rows.arrays.read("m", numbers).any()
    assert rows.is_full
