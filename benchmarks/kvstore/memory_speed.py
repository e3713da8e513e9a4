"""How fast this machine's memory is: copy, addition and a step of descent, in a cache and far from it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cost_model import MemorySpeed
from store_cases import MIB, RATE

NEAR_BYTES, FAR_BYTES = MIB, 64 * MIB
PIECE_ELEMENTS = 1 << 15
"""A rule's work is done piece by piece, so that what it multiplies stays in a cache."""
SHORTEST_S = 0.02
"""Of a sample: shorter ones say more about the clock."""
SAMPLES, QUICK_SAMPLES = 5, 2


def memory_speed(nbytes: int, *, quick: bool = False) -> MemorySpeed:
    """Of arrays of that size, float32; the best of some samples: what disturbs only slows down."""
    samples = QUICK_SAMPLES if quick else SAMPLES
    weight, gradient = _arrays(nbytes)
    piece = np.empty(PIECE_ELEMENTS, np.float32)

    def descend() -> None:
        for start in range(0, weight.size, PIECE_ELEMENTS):
            part = gradient[start : start + PIECE_ELEMENTS]
            step = np.multiply(part, np.float32(RATE), out=piece[: part.size])
            np.subtract(weight[start : start + PIECE_ELEMENTS], step, out=weight[start : start + PIECE_ELEMENTS])

    copy = _speed(nbytes, lambda: np.copyto(weight, gradient), samples)
    weight.fill(0)
    add = _speed(nbytes, lambda: np.add(weight, gradient, out=weight), samples)
    descent = _speed(nbytes, descend, samples)
    return MemorySpeed(copy, add, descent)


def _arrays(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(nbytes // 4, np.float32), np.full(nbytes // 4, 1e-6, np.float32)


def _speed(nbytes: int, work: Callable[[], object], samples: int) -> float:
    """Bytes in a second of this thread: what else the machine does is not counted."""
    work()
    start = time.thread_time()
    work()
    count = max(1, int(SHORTEST_S / max(time.thread_time() - start, 1e-7)))
    times = []
    for _ in range(samples):
        start = time.thread_time()
        for _ in range(count):
            work()
        times.append((time.thread_time() - start) / count)
    return nbytes / min(times)
