"""How fast this machine's memory is: copy, addition and a step of descent, in a cache and far from it; and how much
faster all cores together are than one."""

from __future__ import annotations

import statistics
import threading
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
TOGETHER_S = 0.05
"""Of a sample of several threads: so long that all of them run nearly all of the time."""
TOGETHER_SAMPLES, QUICK_TOGETHER_SAMPLES = 15, 3
"""What others do on the machine slows both sides of a ratio down, but not at one time."""


def memory_speed(nbytes: int, cores: int, *, quick: bool = False) -> MemorySpeed:
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
    together = _together(nbytes, cores, QUICK_TOGETHER_SAMPLES if quick else TOGETHER_SAMPLES)
    return MemorySpeed(copy, add, descent, together)


def _together(nbytes: int, cores: int, samples: int) -> float:
    """How many times as much as a lone thread copies a thread on each core copies in all: the median of samples, each
    beside a lone one's."""
    if cores < 2:
        return 1.0
    each = [_arrays(nbytes) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:

        def copied_in_s(threads: int) -> float:
            """Arrays that so many threads copy in a second."""
            begin = threading.Barrier(threads)

            def copy(number: int) -> float:
                target, source = each[number]
                begin.wait()
                start, count = time.perf_counter(), 0
                while (passed := time.perf_counter() - start) < TOGETHER_S:
                    np.copyto(target, source)
                    count += 1
                return count / passed

            return sum(pool.map(copy, range(threads)))

        copied_in_s(cores)
        return statistics.median(copied_in_s(cores) / copied_in_s(1) for _ in range(samples))


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
