"""Arrays in a file that nobody else sees, of which memory holds a bounded part."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array

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
