"""The worker of the probes: `python probe_side.py DESCRIPTION FRAME_BYTES SHARD_PID`. Frame bytes 0: as they come."""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cost_model import Role
from exchange import END, Line
from store_cases import KIB, MIB, START_S
from weft_kvstore import KVStore
from weft_kvstore.process import tune_process
from weft_kvstore.settings import LinkSettings

SMALL_SLICE_BYTES = 8 * KIB
"""Many slices for few bytes: tells what a slice costs from what a byte costs."""
SMALL_FRAME_BYTES = 128 * KIB


@dataclass(frozen=True, slots=True)
class Probe:
    """A round trip of a key of `nbytes`: one push, then `pulls` of the new value at once.

    `slice_bytes`, `frame_bytes`: None for what the store takes by itself; the latter are both ends'.
    """

    nbytes: int
    pulls: int = 1
    slice_bytes: int | None = None
    frame_bytes: int | None = None

    @property
    def iterations(self) -> int:
        return 100 if self.nbytes < MIB else 24 if self.nbytes < 8 * MIB else 4 if self.nbytes < 32 * MIB else 2

    @property
    def name(self) -> str:
        size = f"{self.nbytes // MIB} MiB" if self.nbytes >= MIB else f"{self.nbytes // KIB} KiB"
        more = [f"{self.pulls} pulls"] if self.pulls > 1 else []
        more += [f"slices of {self.slice_bytes // KIB} KiB"] if self.slice_bytes else []
        more += [f"frames of {self.frame_bytes // KIB} KiB"] if self.frame_bytes else []
        return ", ".join([size, *more])

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Measured:
    """A probe's medians, for one iteration: seconds on the clock, processor's seconds by role, counts."""

    probe: Probe
    time_s: float
    processor_s: Mapping[str, float]
    push_frames: float
    pull_frames: float
    slices: int

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "name": self.probe.name}


def probes() -> tuple[Probe, ...]:
    """What is measured: 4 KiB to 64 MiB, and what tells slices, frames, calls, pushes and pulls apart."""
    sizes = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 24 * MIB, 64 * MIB)
    return (
        *(Probe(size) for size in sizes),
        *(Probe(size, pulls=pulls) for size, pulls in ((4 * KIB, 4), (MIB, 3), (16 * MIB, 3))),
        *(Probe(size, slice_bytes=SMALL_SLICE_BYTES) for size in (64 * KIB, 512 * KIB, 2 * MIB)),
        Probe(512 * KIB, pulls=3, slice_bytes=SMALL_SLICE_BYTES),
        *(Probe(size, frame_bytes=SMALL_FRAME_BYTES) for size in (4 * MIB, 16 * MIB)),
    )


ZEROMQ_NAME = "ZMQbg"
"""How libzmq names its threads."""


def thread_times_s(pid: int) -> dict[int, float]:
    """Seconds on a processor of each thread, by its number. Raises OSError where the kernel does not count them."""
    found: dict[int, float] = {}
    for directory in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[int(directory.name)] = int((directory / "schedstat").read_text().split()[0]) * 1e-9
        except FileNotFoundError:
            if directory.exists():
                raise
    return found


def zeromq_threads(pid: int) -> set[int]:
    """Those of ZeroMQ, by number."""
    names = {directory.name: (directory / "comm").read_text() for directory in Path(f"/proc/{pid}/task").iterdir()}
    return {int(number) for number, name in names.items() if name.startswith(ZEROMQ_NAME)}


def summed(before: Mapping[int, float], after: Mapping[int, float], threads: set[int]) -> float:
    """Seconds that these threads had between two counts."""
    return sum(after[number] - before.get(number, 0.0) for number in threads if number in after)


class Prober:
    """Runs probes of one store, whose keys are named after their size."""

    def __init__(self, store: KVStore, shard_pid: int) -> None:
        self._store, self._shard = store, shard_pid
        self._caller = threading.get_native_id()

    def run(self, key: str, probe: Probe) -> dict[str, Any]:
        """One round: times, processor's seconds by role and frames, all of one iteration."""
        gradient = np.random.Generator(np.random.SFC64(probe.nbytes)).random(probe.nbytes // 4, dtype=np.float32)
        self._trip(key, gradient, probe.pulls)
        own, shard, counts = thread_times_s(os.getpid()), thread_times_s(self._shard), self._store.statistics()
        times = [self._trip(key, gradient, probe.pulls) for _ in range(probe.iterations)]
        after_counts = self._store.statistics()
        after_own, after_shard = thread_times_s(os.getpid()), thread_times_s(self._shard)
        wire = zeromq_threads(os.getpid())
        shard_wire = zeromq_threads(self._shard)
        seconds = {
            Role.CALLER: summed(own, after_own, {self._caller}),
            Role.CLIENT: summed(own, after_own, set(after_own) - wire - {self._caller}),
            Role.CLIENT_WIRE: summed(own, after_own, wire),
            Role.SHARD: summed(shard, after_shard, set(after_shard) - shard_wire),
            Role.SHARD_WIRE: summed(shard, after_shard, shard_wire),
        }
        return {
            "time_s": statistics.median(times),
            "processor_s": {role: value / probe.iterations for role, value in seconds.items()},
            "push_frames": (after_counts.frames_sent - counts.frames_sent) / probe.iterations,
            "pull_frames": (after_counts.frames_received - counts.frames_received) / probe.iterations,
        }

    def _trip(self, key: str, gradient: np.ndarray, pulls: int) -> float:
        start = time.perf_counter()
        push = self._store.push(key, gradient)
        asked = [self._store.pull(key) for _ in range(pulls)]
        for pull in asked:
            pull.result()
        time_s = time.perf_counter() - start
        push.result()
        return time_s


def main(path: str, frame_bytes: str, shard_pid: str) -> None:
    tune_process()
    line = Line()
    settings = LinkSettings(frame_bytes=int(frame_bytes) or None, silence_s=START_S, same_host=False)
    with KVStore.connect(path, 0, settings=settings) as store:
        prober = Prober(store, int(shard_pid))
        line.say(do="ready", versions={})
        while (word := line.hear())["do"] != END:
            line.say(do="done", **prober.run(word["key"], Probe(**word["probe"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
