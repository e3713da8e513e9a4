"""Parts of a table's arrays whose rows have come into being are brought into huge pages: rows that lie anywhere are
read and written in three quarters of the time, for the processor knows the addresses of few small pages."""

from __future__ import annotations

import errno
import mmap
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.zeros import HUGE_PAGE_BYTES

FULL: Final = 7 / 8
"""Of a block's rows: the others get memory before they need it."""

BLOCKS_AT_ONCE: Final = 4
"""Blocks that are brought there in one go: each is copied, which takes some 500 us."""

MOST_BLOCKS: Final = 1 << 12
"""Blocks of one array that are brought there: the kernel keeps a list of a process's mappings, which may fall apart
into twice as many."""

LARGEST_ROW_BYTES: Final = 1 << 12
"""Larger rows gain nothing."""

_COLLAPSE: Final = 25
"""MADV_COLLAPSE of Linux 6.1, which Python does not name."""

_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class HugeBlocks:
    """Counts the rows of arrays that all have as many bytes. Invariant: `_count` is -1 of blocks that were full."""

    __slots__ = ("_count", "_full", "_mapped", "_row_bytes", "_waiting")

    def __init__(self, arrays: Sequence[Array]) -> None:
        """`arrays` (rows, width) of `zeros_on_demand`."""
        mapped = [_mapping_of(array) for array in arrays]
        self._mapped = [one for one in mapped if one is not None]
        self._row_bytes = arrays[0].shape[1] * arrays[0].itemsize
        blocks = min(arrays[0].nbytes // HUGE_PAGE_BYTES, MOST_BLOCKS)
        fits = 0 < self._row_bytes <= LARGEST_ROW_BYTES and len(mapped) == len(self._mapped) and _is_wanted()
        self._count = np.zeros(blocks if fits else 0, np.int64)
        self._full = int(FULL * HUGE_PAGE_BYTES / self._row_bytes) if fits else 0
        self._waiting: deque[int] = deque()

    def __bool__(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._waiting)

    def came(self, rows: Array) -> None:
        """Rows (n) int64, distinct, that come into being."""
        count = self._count
        if not len(count):
            return
        blocks = rows * self._row_bytes >> HUGE_PAGE_BYTES.bit_length() - 1
        count += np.where(count < 0, 0, np.bincount(blocks[blocks < len(count)], minlength=len(count)))
        full = np.flatnonzero(count >= self._full)
        count[full] = -1
        self._waiting.extend(full.tolist())

    def advance(self) -> None:
        """Brings some blocks there. What the kernel will not do is not asked for again."""
        for _ in range(min(BLOCKS_AT_ONCE, len(self._waiting))):
            place = self._waiting.popleft() * HUGE_PAGE_BYTES
            try:
                for mapped, begin in self._mapped:
                    mapped.madvise(mmap.MADV_HUGEPAGE, begin + place, HUGE_PAGE_BYTES)
                    mapped.madvise(_COLLAPSE, begin + place, HUGE_PAGE_BYTES)
            except OSError as error:
                if error.errno == errno.EINVAL:  # A kernel that cannot.
                    self._count = self._count[:0]
                    self._waiting.clear()
                    return


def _is_wanted() -> bool:
    """Whether the machine has huge pages for who asks for them."""
    try:
        return "[never]" not in _SETTING.read_text(encoding="ascii")
    except OSError:
        return False


def _mapping_of(array: Array) -> tuple[mmap.mmap, int] | None:
    """The mapping in which an array lies, from the beginning of a huge page on, and where in it."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    found = base.obj if isinstance(base, memoryview) else base
    if not isinstance(found, mmap.mmap) or array.ctypes.data % HUGE_PAGE_BYTES:
        return None
    return found, array.ctypes.data - np.frombuffer(found, np.uint8).ctypes.data
