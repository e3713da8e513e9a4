"""The worker of the probes: `python probe_side.py DESCRIPTION FRAME_BYTES SHARD_PID`. Frame bytes 0: as they come."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from cost_model import Role
from exchange import END, Line
from probe import Probe
from processor_time import summed, thread_times_s, zeromq_threads
from store_cases import START_S
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.describing import read_description
from weft_kvstore.process import tune_process
from weft_kvstore.settings import LinkSettings


class Prober:
    """Runs probes of one store, whose keys are named after their size."""

    def __init__(self, store: StoreClient, shard_pid: int) -> None:
        self._store, self._shard = store, shard_pid
        self._steps: dict[str, int] = {}
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
        step = self._steps.get(key, 0)
        start = time.perf_counter()
        push = self._store.push(key, step, gradient)
        asked = [self._store.pull(key, step + 1) for _ in range(pulls)]
        for pull in asked:
            pull.result()
        time_s = time.perf_counter() - start
        push.result()
        self._steps[key] = step + 1
        return time_s


def main(path: str, frame_bytes: str, shard_pid: str) -> None:
    tune_process()
    line = Line()
    settings = LinkSettings(frame_bytes=int(frame_bytes) or None, silence_s=START_S, same_host=False)
    with StoreClient(read_description(Path(path)), 0, settings=settings) as store:
        prober = Prober(store, int(shard_pid))
        line.say(do="ready", versions={})
        while (word := line.hear())["do"] != END:
            line.say(do="done", **prober.run(word["key"], Probe(**word["probe"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
