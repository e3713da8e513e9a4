"""Shared memory as arrays."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from weft_kvstore.arrays.array import Array
from weft_kvstore.same_host.errors import ArenaError

MADV_POPULATE_WRITE: Final = 23
"""madvise(2), Linux 5.14: maps all pages now, writable, without changing them. The mmap module has no word for it."""

POPULATED_AT_ONCE: Final = 1 << 21
"""Bytes. Whoever maps or unmaps anything in this process waits meanwhile, NumPy for any larger array: 0.5 ms."""


class Mapping:
    """All of a descriptor's memory, readable and writable by this process and whoever else has mapped it.

    The mapping ends when this object was released, or is gone, *and* so is the last array in it: an array never points
    to what is no more. The descriptor may be closed at once. Raises ArenaError if it cannot be mapped.

    What another process can write may change between two looks: numbers can be computed with as they are; what is
    checked before use (ids, lengths) must be copied first, and the copy checked.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.nbytes = nbytes
        try:
            self._map: mmap.mmap | None = mmap.mmap(fd, nbytes)
        except (OSError, ValueError) as error:
            raise ArenaError(f"an arena of {nbytes} bytes cannot be mapped: {error}") from error
        # Arrays hold the map through this one. Closing it under them raises BufferError, so it is left to the last.
        self._bytes: Array | None = np.frombuffer(self._map, np.uint8)
        self._address: int = self._bytes.ctypes.data

    def array(self, offset: int, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """The array at `offset`, C-contiguous. Raises ArenaError for bytes outside, a misaligned offset, or once
        released."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ArenaError(f"dtype {kind}: elements that are references cannot be shared")
        if min(shape, default=0) < 0:
            raise ArenaError(f"shape {tuple(shape)}: a dimension is below 0")
        if kind.alignment and offset % kind.alignment:
            raise ArenaError(f"offset {offset} is not aligned for {kind}")
        return self.bytes_at(offset, prod(shape) * kind.itemsize).view(kind).reshape(shape)

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """`nbytes` bytes from `offset` on, uint8, one dimension. Raises ArenaError as `array` does."""
        if self._bytes is None:
            raise ArenaError("the arena was released")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ArenaError(f"bytes {offset} to {offset + nbytes} of an arena that has {self.nbytes}")
        return self._bytes[offset : offset + nbytes]

    def populate(self, start: int, stop: int) -> None:
        """Maps the pages of these bytes, so that no first touch falls into a step. Changes no byte; other threads run
        meanwhile."""
        held = self._bytes
        if held is None:
            return
        start = start // mmap.PAGESIZE * mmap.PAGESIZE
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for at in range(start, stop, POPULATED_AT_ONCE):
            end = min(at + POPULATED_AT_ONCE, stop)
            if madvise(self._address + at, end - at, MADV_POPULATE_WRITE):
                # An older kernel. Reading maps the pages too; writing could undo what the other process has just
                # written.
                held[at : end : mmap.PAGESIZE].max()

    def populate_behind(self, start: int, stop: int) -> None:
        """`populate` on a thread of its own, which ends with it: 0.2 ms a MiB is too long for a thread of sockets."""
        with contextlib.suppress(RuntimeError):  # No thread can be had: pages are mapped as they are touched.
            threading.Thread(target=self.populate, args=(start, stop), name="weft-populate", daemon=True).start()

    @property
    def released(self) -> bool:
        return self._bytes is None

    def release(self) -> None:
        """No array is given out any more; the memory is unmapped when the last one is gone. Idempotent."""
        self._bytes = self._map = None
