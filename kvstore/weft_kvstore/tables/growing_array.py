"""Arrays that grow without copying what they have."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array

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
