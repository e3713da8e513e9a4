"""How fast this machine's memory is: copy, addition and a step of descent, in a cache and far from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
    """Of arrays of that size, float32; the best of some samples, for what disturbs only slows down."""
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
    return MemorySpeed(copy, add, descent, _together(nbytes, samples))


def _arrays(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(nbytes // 4, np.float32), np.full(nbytes // 4, 1e-6, np.float32)


def _speed(nbytes: int, work: Callable[[], object], samples: int) -> float:
    """Bytes a second."""
    work()
    start = time.perf_counter()
    work()
    count = max(1, int(SHORTEST_S / max(time.perf_counter() - start, 1e-7)))
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(count):
            work()
        times.append((time.perf_counter() - start) / count)
    return nbytes / min(times)


def _together(nbytes: int, samples: int) -> float:
    """What two threads add in a lone one's time, which adds 1; between 1 and 2."""
    pairs = [_arrays(nbytes) for _ in range(2)]
    count = max(4, int(SHORTEST_S * 4e9 / nbytes))

    def add(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(count):
            np.add(pair[0], pair[1], out=pair[0])

    lone, both = [], []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(samples + 1):
            start = time.perf_counter()
            add(pairs[0])
            lone.append(time.perf_counter() - start)
            start = time.perf_counter()
            list(pool.map(add, pairs))
            both.append(time.perf_counter() - start)
    return min(max(2 * min(lone) / min(both), 1.0), 2.0)
