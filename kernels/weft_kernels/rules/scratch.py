"""Arrays that each thread uses again and again, for what updates make on the way."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from weft_kernels.kernel import Array


class _Scratch(threading.local):
    """Arrays of a thread that every update writes to: memory that is new costs more than the pass over it."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[np.dtype[Any], ...], list[Array]] = {}


_kept = _Scratch()


def scratch(dtypes: tuple[np.dtype[Any], ...], elements: int) -> list[Array]:
    """Arrays of these types, each of at least as many elements, which are this thread's until it asks again."""
    arrays = _kept.arrays.get(dtypes)
    if arrays is None or (arrays and arrays[0].size < elements):
        arrays = _kept.arrays[dtypes] = [np.empty(elements, dtype) for dtype in dtypes]
    return arrays
