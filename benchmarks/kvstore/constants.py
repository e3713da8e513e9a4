"""What the cost model's constants come from: the speed of memory, round trips of one key with real processes, and the
costs that explain them best.

A thread's processor time is the sum of the counts of its work times their costs; the costs are the non-negative ones
that come nearest, each probe's error counted relative to its time (Lawson and Hanson, "Solving least squares problems",
1974, chapter 23).

Costs are a lone thread's. Where threads of a probe ran at once, each took longer than alone by what the memory
benchmarks say, and its processor time is counted by so much less.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from cost_model import NEAR_BYTES, Constants, Cost, Machines, MemorySpeed, Role, Work
from groups import HERE, Group, SideError, description_of, free_port
from probe_side import Measured, Probe
from store_cases import FLOAT_BYTES, MIB, RATE, Case
from weft_kvstore.process import MMAP_THRESHOLD_BYTES

NEAR_ARRAY_BYTES, FAR_ARRAY_BYTES = MIB, 64 * MIB
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


Setting = tuple[int, int]
"""Bytes of a slice, and of the frames of both ends or 0."""


class ProbeGroup(Group):
    """A shard and the worker that probes it."""

    def begin(self, setting: Setting) -> None:
        slice_bytes, frame_bytes = setting
        description = description_of(self.case, slice_bytes, (f"tcp://127.0.0.1:{free_port()}",))
        path = self.directory / f"store-{slice_bytes}-{frame_bytes}.json"
        path.write_bytes(msgspec.json.encode(description))
        settings = json.dumps({"frame_bytes": frame_bytes} if frame_bytes else {})
        self.serve(
            "shard", [sys.executable, str(HERE / "layers_shard.py"), str(path), description.shards[0], settings], {}
        )
        shard = str(self._processes[-1].pid)
        self.work("worker", [sys.executable, str(HERE / "probe_side.py"), str(path), str(frame_bytes), shard], {})

    def probe(self, key: str, probe: Probe) -> dict[str, Any]:
        """One round. Raises SideError."""
        self._workers[0].say(do="probe", key=key, probe=asdict(probe))
        return self._expect("done")[0]


def run_probes(
    chosen: Sequence[Probe], rounds: int, slice_bytes: int, progress: Callable[[str], None]
) -> list[Measured]:
    """Medians over the rounds, of which the probes take turns. Raises SideError."""
    settings: dict[Setting, list[Probe]] = {}
    for probe in chosen:
        settings.setdefault((probe.slice_bytes or slice_bytes, probe.frame_bytes or 0), []).append(probe)
    found: dict[Probe, list[dict[str, Any]]] = {probe: [] for probe in chosen}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="weft-benchmark-")))
        groups: dict[Setting, tuple[ProbeGroup, list[int]]] = {}
        for number, (setting, own) in enumerate(settings.items()):
            sizes = sorted({probe.nbytes for probe in own})
            case = Case("probe", tuple((size // FLOAT_BYTES,) for size in sizes), 1, 1, 1, 1)
            group = stack.enter_context(ProbeGroup(f"weft {number}", case, directory))
            progress(f"starts a store with slices of {setting[0]} bytes")
            group.begin(setting)
            group.wait_until_ready()
            groups[setting] = group, sizes
        for turn in range(rounds):
            for setting, own in settings.items():
                group, sizes = groups[setting]
                for probe in own:
                    progress(f"{probe.name}, round {turn + 1}")
                    found[probe].append(group.probe(f"key{sizes.index(probe.nbytes)}", probe))
    return [_median(probe, each, slice_bytes) for probe, each in found.items()]


def _median(probe: Probe, rounds: Sequence[dict[str, Any]], slice_bytes: int) -> Measured:
    if not rounds:
        raise SideError(f"{probe.name}: no round was run")
    roles = rounds[0]["processor_s"]
    return Measured(
        probe,
        statistics.median([each["time_s"] for each in rounds]),
        {role: statistics.median([each["processor_s"][role] for each in rounds]) for role in roles},
        statistics.median([each["push_frames"] for each in rounds]),
        statistics.median([each["pull_frames"] for each in rounds]),
        -(-probe.nbytes // (probe.slice_bytes or slice_bytes)),
    )


LEAST_S = 1e-6
"""A shorter time is noise: it does not weigh more than this."""


def work_of(one: Measured) -> Work:
    """What one iteration of a probe amounts to."""
    pulls, nbytes = one.probe.pulls, one.probe.nbytes
    near, far = (nbytes, 0) if nbytes <= NEAR_BYTES else (0, nbytes)
    return Work(
        rounds=1,
        calls=1 + pulls,
        push_frames=one.push_frames,
        pull_frames=one.pull_frames,
        push_slices=one.slices,
        pull_slices=one.slices * pulls,
        push_near=near,
        pull_near=near * pulls,
        push_far=far,
        pull_far=far * pulls,
        mapped=nbytes * pulls if nbytes >= MMAP_THRESHOLD_BYTES else 0,
    )


def lone_share(one: Measured, memory: MemorySpeed, cores: int) -> float:
    """How much of a probe's processor time its work would take a thread that runs alone.

    All cores are taken to have been busy at once for as long as the clock's time cannot hold the processor's.
    """
    processor_s = sum(one.processor_s.values())
    if cores < 2 or one.time_s <= 0 or processor_s <= one.time_s:
        return 1.0
    together_s = min(cores * (processor_s - one.time_s) / (cores - 1), processor_s)
    return 1 - together_s / processor_s * (1 - min(memory.together / cores, 1.0))


def costs_of(measured: Sequence[Measured], shares: Sequence[float] | None = None) -> dict[Role, Cost]:
    """Costs by role, each at least 0. `shares` of the probes' processor times are counted, None: all of them."""
    from scipy.optimize import nnls  # takes half a second, and is for this alone

    counts = np.array([work_of(one).row() for one in measured], np.float64)
    unit = np.maximum(counts.max(axis=0), 1e-300)  # bytes are millions where rounds are one
    lone = np.ones(len(measured)) if shares is None else np.array(shares)
    costs = {}
    for role in Role:
        times_s = np.maximum([one.processor_s[role] for one in measured] * lone, LEAST_S)
        found, _ = nnls(counts / unit / times_s[:, None], np.ones(len(measured)))
        costs[role] = Cost(*(found / unit).tolist())
    return costs


def fit(measured: Sequence[Measured], near: MemorySpeed, far: MemorySpeed, cores: int) -> Constants:
    """All constants. Raises ValueError without probes."""
    if not measured:
        raise ValueError("no probes to fit constants to")
    largest = max((one for one in measured if one.probe.frame_bytes is None), key=lambda one: one.probe.nbytes)
    frame_bytes = round(largest.probe.nbytes / max(largest.push_frames, 1.0))
    shares = [lone_share(one, near if one.probe.nbytes <= NEAR_BYTES else far, cores) for one in measured]
    return Constants(costs_of(measured, shares), near, far, frame_bytes)


def loopback(cores: int, memory: MemorySpeed) -> Machines:
    """One host, whose busy cores slow each other down as they do in that memory."""
    return Machines(True, min(max(memory.together, 1.0), max(cores, 1)))
