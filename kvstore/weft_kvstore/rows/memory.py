"""Memory of tables: arrays that grow, in huge pages, or on disk."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import HUGE_PAGE_BYTES, Array

# --- Where a table's rows are kept on a shard: a setting of the shard's process ---------------------------------------


LEAST_MEMORY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table's values and state take at most about `memory_bytes` of memory on a shard: what may become larger lies in
    a file of `directory`, which may be given as a string. Its index of ids, and what counts uses, are in memory always.
    Raises ValueError, also for what is no path or no whole number."""

    directory: Path
    memory_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike):
            raise ValueError(f"directory: a path, not {self.directory!r}")
        object.__setattr__(self, "directory", Path(self.directory))
        if isinstance(self.memory_bytes, bool) or not isinstance(self.memory_bytes, int):
            raise ValueError(f"memory_bytes: a whole number of bytes, such as 1 << 30, not {self.memory_bytes!r}")
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {LEAST_MEMORY_BYTES}, not {self.memory_bytes}")


# ----------------------------------------------------------------------------------------------------------------------
# Parts of a table's arrays whose rows have come into being are brought into huge pages: rows that lie anywhere are read
# and written in three quarters of the time, for the processor knows the addresses of few small pages.


PAGE_BYTES: Final = 4096
"""A small page: a row takes memory for the whole of it."""

FULL: Final = 7 * HUGE_PAGE_BYTES // (8 * PAGE_BYTES)
"""Small pages of a block in which there is a row: the others get memory before they need it."""

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
    """Counts the small pages with rows of arrays that all have as many bytes. Invariant: `_count` is -1 of blocks that
    were full, and `_begun` (pages, bool) true of pages that were counted."""

    __slots__ = ("_begun", "_count", "_mapped", "_row_bytes", "waiting")

    def __init__(self, arrays: Sequence[Array]) -> None:
        """`arrays` (rows, width) of `zeros_on_demand`."""
        mapped = [_mapping_of(array) for array in arrays]
        self._mapped = [one for one in mapped if one is not None]
        self._row_bytes = arrays[0].shape[1] * arrays[0].itemsize
        blocks = min(arrays[0].nbytes // HUGE_PAGE_BYTES, MOST_BLOCKS)
        fits = 0 < self._row_bytes <= LARGEST_ROW_BYTES and len(mapped) == len(self._mapped) and _is_wanted()
        self._count = np.zeros(blocks if fits else 0, np.int64)
        self._begun = np.zeros(len(self._count) * (HUGE_PAGE_BYTES // PAGE_BYTES), np.bool_)
        self.waiting: deque[int] = deque()
        """What `advance` has to do."""

    def came(self, rows: Array) -> None:
        """Rows (n) int64, distinct, that come into being."""
        count = self._count
        if not len(count):
            return
        pages = rows * self._row_bytes // PAGE_BYTES
        pages = pages[pages < len(self._begun)]
        new = np.unique(pages[~self._begun[pages]])
        self._begun[new] = True
        blocks = new // (HUGE_PAGE_BYTES // PAGE_BYTES)
        count += np.where(count < 0, 0, np.bincount(blocks, minlength=len(count)))
        full = np.flatnonzero(count >= FULL)
        count[full] = -1
        self.waiting.extend(full.tolist())

    def advance(self) -> None:
        """Brings some blocks there. What the kernel will not do is not asked for again."""
        for _ in range(min(BLOCKS_AT_ONCE, len(self.waiting))):
            place = self.waiting.popleft() * HUGE_PAGE_BYTES
            try:
                for mapped, begin in self._mapped:
                    mapped.madvise(mmap.MADV_HUGEPAGE, begin + place, HUGE_PAGE_BYTES)
                    mapped.madvise(_COLLAPSE, begin + place, HUGE_PAGE_BYTES)
            except OSError as error:
                if error.errno == errno.EINVAL:  # A kernel that cannot.
                    self._count, self._begun = self._count[:0], self._begun[:0]
                    self.waiting.clear()
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


# --- Arrays in a file that nobody else sees, of which memory holds a bounded part -------------------------------------


WINDOW_BYTES: Final = 1 << 16
"""What one access may bring into memory: Linux maps so much around what is read."""

_WHOLE: Final = 1 << 21


class DiskArray:
    """Rows (rows, width) in `array`, zeros until they are written, in a file of `directory` without a name: it is gone
    with the process, however that ends. Its space is reserved before it is used, so a full disk is an error of `grow`
    and not a signal later. `array` is another one after `grow`.

    `pieces` cuts what is to be read or written so that no more than about `resident_bytes` are mapped at once.
    """

    def __init__(self, directory: Path, resident_bytes: int, width: int, dtype: np.dtype[Any] | str) -> None:
        """Raises OSError where the directory is none, or no file can be made there."""
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.directory = directory
        self._width = width
        self._windows = max(resident_bytes // WINDOW_BYTES, 2)
        self._used = 0
        with tempfile.TemporaryFile(dir=directory, prefix="weft-table-") as made:
            self._file = os.dup(made.fileno())
        self._closing = weakref.finalize(self, os.close, self._file)
        self._mapped: mmap.mmap | None = None
        self.array: Array = np.zeros((0, width), self.dtype)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * self._width

    def grow(self, rows: int) -> None:
        """Makes place for so many rows. Raises MemoryError where the disk has none; nothing has changed then."""
        if rows <= len(self.array) or not self.row_bytes:
            return
        nbytes = -(-rows * self.row_bytes // _WHOLE) * _WHOLE
        try:
            os.posix_fallocate(self._file, 0, nbytes)
            self.array = np.zeros((0, self._width), self.dtype)  # A mapping that an array shows cannot be moved.
            before, self._mapped = self._mapped, mmap.mmap(self._file, nbytes)
        except (OSError, ValueError, OverflowError) as error:
            self._show()
            raise MemoryError(f"{nbytes} bytes cannot be reserved in {self.directory}: {error}") from error
        if before is not None:
            with contextlib.suppress(BufferError):  # Somebody reads it still, of the same file.
                before.close()
        with contextlib.suppress(OSError):
            self._mapped.madvise(mmap.MADV_RANDOM)  # Rows beside one that is read are not read ahead.
        self._used = 0
        self._show()

    def pieces(self, rows: Array) -> Iterator[Array]:
        """Parts of rows (n) int64, to be read or written one after the other."""
        windows = rows * self.row_bytes // WINDOW_BYTES
        spans = 1 + (self.row_bytes - 1) // WINDOW_BYTES + (WINDOW_BYTES % self.row_bytes > 0)
        a_piece = max(self._windows // (2 * spans), 1)
        begin = 0
        while begin < len(rows):
            # Rows that share a window count once: such as come one behind the other.
            some = windows[begin : begin + max(a_piece, WINDOW_BYTES // self.row_bytes)]
            if (touched := len(np.unique(some))) > a_piece:
                some = some[:a_piece]
                touched = a_piece
            if self._used + touched * spans > self._windows:
                self.drop()
            self._used += touched * spans
            yield rows[begin : begin + len(some)]
            begin += len(some)

    def drop(self) -> None:
        """Lets go of the memory; what was written stays with the file."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)
        self._used = 0

    def close(self) -> None:
        """Gives the space back, once nobody reads the array any more."""
        self.array = np.zeros((0, self._width), self.dtype)
        if self._mapped is not None:
            with contextlib.suppress(BufferError):
                self._mapped.close()
        self._mapped = None
        self._closing()

    def _show(self) -> None:
        if self._mapped is not None:
            rows = len(self._mapped) // self.row_bytes
            self.array = np.frombuffer(self._mapped, self.dtype, rows * self._width).reshape(rows, self._width)


# --- Arrays that grow without copying what they have ------------------------------------------------------------------


LEAST_MAPPED_BYTES: Final = 1 << 21
"""Smaller arrays are not worth a mapping, and are copied when they grow. The size of a huge page."""

_NO_RESERVE: Final = 0x4000
"""MAP_NORESERVE of Linux: pages that were never written take no memory."""


class GrowingArray:
    """Rows (rows, width) in `array`, or (rows) where `width` is None. Zeros until they are written.

    On Linux a large one is a mapping: when it grows the kernel moves page tables and copies nothing, and pages that
    were never written take no memory. `array` is another one after `grow`: hold it only from one call to the next.
    """

    __slots__ = ("_mapped", "_width", "array", "dtype")

    def __init__(self, width: int | None, dtype: np.dtype[Any] | type | str) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._width = width
        self._mapped: mmap.mmap | None = None
        self.array: Array = np.zeros(self._shape(0), self.dtype)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * (1 if self._width is None else self._width)

    def grow(self, rows: int) -> None:
        """Makes place for so many rows. Raises MemoryError; nothing has changed then."""
        if rows <= len(self.array):
            return
        nbytes = rows * self.row_bytes
        if nbytes < LEAST_MAPPED_BYTES or sys.platform != "linux":
            self._copy_to(np.zeros(self._shape(rows), self.dtype))
            return
        try:
            if self._mapped is None:
                self._map(rows)
            else:
                self._remap(rows)
        except (OSError, ValueError, OverflowError, SystemError) as error:
            raise MemoryError(f"{nbytes} bytes cannot be mapped: {error}") from error

    def _map(self, rows: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        mapped = mmap.mmap(-1, _whole_pages(rows * self.row_bytes), flags=flags)
        with contextlib.suppress(OSError):  # A kernel without huge pages refuses the advice, and does not need it.
            # Rows are filled one behind the other and read anywhere: with small pages a look-up takes thrice as long.
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self._copy_to(self._over(mapped, rows))
        self._mapped = mapped

    def _remap(self, rows: int) -> None:
        mapped, before = self._mapped, len(self.array)
        assert mapped is not None
        self.array = np.zeros(self._shape(0), self.dtype)  # A mapping that an array shows cannot be moved.
        try:
            mapped.resize(_whole_pages(rows * self.row_bytes))
        except BufferError:  # Somebody reads it still: what they have stays as it is.
            self.array = self._over(mapped, before)
            self._map(rows)
        except OSError:
            self.array = self._over(mapped, before)
            raise
        else:
            self.array = self._over(mapped, rows)

    def _over(self, mapped: mmap.mmap, rows: int) -> Array:
        width = 1 if self._width is None else self._width
        return np.frombuffer(mapped, self.dtype, rows * width).reshape(self._shape(rows))

    def _copy_to(self, larger: Array) -> None:
        larger[: len(self.array)] = self.array
        self.array = larger

    def _shape(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self._width is None else (rows, self._width)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // LEAST_MAPPED_BYTES) * LEAST_MAPPED_BYTES
