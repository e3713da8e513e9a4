"""Arrays of zeros that take memory only where they are written."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array

LEAST_MAPPED_BYTES: Final = 1 << 20
"""Smaller arrays are not worth a mapping."""

HUGE_PAGE_BYTES: Final = 1 << 21

_NO_RESERVE: Final = 0x4000
"""MAP_NORESERVE of Linux: a table may be larger than the memory, of which only what is touched is needed."""


def zeros_on_demand(shape: Sequence[int], dtype: np.dtype[Any] | str) -> Array:
    """Zeros (shape) of a dtype. On Linux no page exists before it is written, and a large array begins where a huge
    page may. Raises MemoryError."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < LEAST_MAPPED_BYTES or sys.platform != "linux":
        return np.zeros(shape, dtype)
    aligned = HUGE_PAGE_BYTES if nbytes >= HUGE_PAGE_BYTES else 0
    try:
        mapped = mmap.mmap(-1, nbytes + aligned, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes cannot be mapped: {error}") from error
    with contextlib.suppress(OSError):  # A kernel without huge pages refuses the advice, and does not need it.
        # One row touched must not bring a page of 2 MiB.
        mapped.madvise(mmap.MADV_NOHUGEPAGE)
    begin = -np.frombuffer(mapped, np.uint8).ctypes.data % HUGE_PAGE_BYTES if aligned else 0
    return np.frombuffer(mapped, dtype, math.prod(shape), offset=begin).reshape(shape)
