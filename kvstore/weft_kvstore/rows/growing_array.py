"""Memory of tables: where a table may lie on disk, and arrays that grow without a copy, in memory or in a file."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from weft_kvstore.arrays import Array

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


HUGE_PAGE_BYTES: Final = 1 << 21
"""Smaller arrays are not worth a mapping, and are copied when they grow."""

LEAST_ROWS: Final = 1 << 10
"""What `reserve` makes room for at least."""

_NO_RESERVE: Final = 0x4000
"""MAP_NORESERVE of Linux: pages that were never written take no memory, and a table may be larger than the memory."""

_COLLAPSE: Final = 25
"""MADV_COLLAPSE of Linux 6.1, which Python does not name."""

HUGE_PAGES_AT_ONCE: Final = 4
"""So many huge pages are filled at once: each is copied, which takes some 500 us."""

NEARLY_ALL: Final = 7 / 8
"""A table is brought into huge pages once it has this part of its rows: it takes the memory of all of them then."""


class GrowingArray:
    """Rows (rows, width) in `array`, or (rows) where `width` is None. Zeros until they are written.

    On Linux a large array is a mapping: when it grows the kernel moves page tables and copies nothing. `array` is
    another one after it grows: hold it only from one call to the next. One of fixed size gets a page where it is
    written, until `to_huge_pages`.

    With a `directory` it is a file without a name, which is gone with the process, however that ends. Its space is
    reserved before it is used: a full disk is an error of `grow`, not a signal later.
    """

    __slots__ = ("__weakref__", "_begin", "_file", "_is_fixed", "_mapped", "_row", "array", "dtype")

    def __init__(
        self,
        width: int | None,
        dtype: np.dtype[Any] | type | str,
        *,
        rows: int | None = None,
        directory: Path | None = None,
    ) -> None:
        """`rows`: how many there will ever be; None: it grows. Raises MemoryError, and OSError where no file can be
        made in the directory."""
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._row = () if width is None else (width,)
        self._is_fixed = rows is not None
        self._mapped: mmap.mmap | None = None
        self._begin = 0
        """Where the array is in the mapping."""
        self._file: IO[bytes] | None = None
        self.array: Array = np.zeros((0, *self._row), self.dtype)
        if directory is not None:
            self._file = tempfile.TemporaryFile(dir=directory, prefix="weft-table-")  # noqa: SIM115  # `close` does
            weakref.finalize(self, self._file.close)
        self.grow(rows or 0)

    def __len__(self) -> int:
        return len(self.array)

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows, and for some that come later. Raises MemoryError; nothing has changed then."""
        if rows > len(self.array):
            self.grow(max(rows, len(self.array) * 5 // 4, LEAST_ROWS))

    def grow(self, rows: int) -> None:
        """Makes room for just so many rows. Raises MemoryError; nothing has changed then."""
        if rows <= len(self.array):
            return
        nbytes = rows * self.dtype.itemsize * int(np.prod(self._row))
        if self._file is None and (nbytes < HUGE_PAGE_BYTES or sys.platform != "linux"):
            self._copy_to(np.zeros((rows, *self._row), self.dtype))
            return
        whole = -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        try:
            if self._file is not None:
                os.posix_fallocate(self._file.fileno(), 0, whole)
            if not self._moved(rows, whole):
                self._map(rows, whole)
        except (OSError, ValueError, OverflowError, SystemError) as error:
            raise MemoryError(f"{nbytes} bytes cannot be reserved: {error}") from error

    def to_huge_pages(self) -> Iterator[None]:
        """Brings an array of fixed size, in memory, into huge pages; stops after some blocks. Rows that lie anywhere
        are read in two thirds of the time: the processor knows the addresses of few small pages."""
        mapped, stop = self._mapped, self.array.nbytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if mapped is None:
            return
        for at in range(0, stop, HUGE_PAGES_AT_ONCE * HUGE_PAGE_BYTES):
            some = min(HUGE_PAGES_AT_ONCE * HUGE_PAGE_BYTES, stop - at)
            try:
                mapped.madvise(mmap.MADV_HUGEPAGE, self._begin + at, some)
                mapped.madvise(_COLLAPSE, self._begin + at, some)
            except OSError as error:  # With another number memory is short now.
                if error.errno == errno.EINVAL:  # A kernel that cannot is not asked again.
                    return
            yield

    def unmap(self) -> None:
        """Frees the memory of an array in a file; what was written stays in the file."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Frees the space of an array in a file, once nobody reads the array any more."""
        self.array = np.zeros((0, *self._row), self.dtype)
        if self._mapped is not None:
            with contextlib.suppress(BufferError):
                self._mapped.close()
        self._mapped = None
        if self._file is not None:
            self._file.close()

    def _moved(self, rows: int, nbytes: int) -> bool:
        """Whether the mapping could grow: it cannot while somebody reads the array."""
        mapped, count = self._mapped, len(self.array)
        if mapped is None:
            return False
        self.array = np.zeros((0, *self._row), self.dtype)  # A mapping that an array shows cannot be moved.
        try:
            mapped.resize(nbytes)
            count = rows
        except BufferError:
            return False
        finally:
            self.array = self._over(mapped, count)
        return True

    def _map(self, rows: int, nbytes: int) -> None:
        if self._file is not None:
            mapped, advice = mmap.mmap(self._file.fileno(), nbytes), mmap.MADV_RANDOM  # nothing is read ahead
        else:
            # Rows are filled one behind the other and read anywhere: with small pages a look-up takes thrice as long.
            # Where they are written anywhere, one row must not bring a page of 2 MiB.
            advice = mmap.MADV_NOHUGEPAGE if self._is_fixed else mmap.MADV_HUGEPAGE
            spare = HUGE_PAGE_BYTES if self._is_fixed else 0
            mapped = mmap.mmap(-1, nbytes + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
            self._begin = -np.frombuffer(mapped, np.uint8).ctypes.data % HUGE_PAGE_BYTES if self._is_fixed else 0
        with contextlib.suppress(OSError):  # A kernel without huge pages refuses the advice, and does not need it.
            mapped.madvise(advice)
        self._copy_to(self._over(mapped, rows))
        self._mapped = mapped

    def _over(self, mapped: mmap.mmap, rows: int) -> Array:
        flat = np.frombuffer(mapped, self.dtype, rows * int(np.prod(self._row)), offset=self._begin)
        return flat.reshape((rows, *self._row))

    def _copy_to(self, larger: Array) -> None:
        larger[: len(self.array)] = self.array
        self.array = larger
