"""A small round trip while a thread of the same process computes in pure Python.

At the switch interval that weft's daemons set, at CPython's default, and without the thread: the same store, in turns.
docs/benchmarks.md says how to run it, and what the figures mean.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from benchmark import Plan, Progress, run
from groups import Group, SideError, default_slice_bytes, description_of, free_port
from reporting import PeerRounds, Round, Row, end_on_sigterm, row_of
from store_cases import FLOAT_BYTES, KIB, RATE, TOLERANCE, Case
from weft_kvstore import KVStore
from weft_kvstore.errors import StoreError
from weft_kvstore.process import SWITCH_INTERVAL_S, tune_process
from weft_kvstore.settings import LinkSettings

DEFAULT_SWITCH_INTERVAL_S = 0.005
"""CPython's, from the documentation of `sys.setswitchinterval`."""

CASE = Case("busy-4KiB", ((4 * KIB // FLOAT_BYTES,),), workers=1, servers=1, iterations=200, warm_up=20)
START_S = 60.0
"""What a shard may take to start, on a machine with other work."""

IDLE, TUNED, DEFAULT = "idle", "busy, tuned", "busy, default"
SETTINGS = {
    IDLE: (SWITCH_INTERVAL_S, False),
    TUNED: (SWITCH_INTERVAL_S, True),
    DEFAULT: (DEFAULT_SWITCH_INTERVAL_S, True),
}
"""The switch interval of a round, and whether a thread computes meanwhile."""
PEERS = {DEFAULT: "CPython default, 5 ms", IDLE: "idle interpreter"}


class Trips:
    """Round trips of one key: a gradient pushed, and the new value pulled, each compared with NumPy."""

    def __init__(self, store: KVStore, key: str, elements: int) -> None:
        self._store, self._key = store, key
        self._step = 0
        self._generator = np.random.Generator(np.random.SFC64(1))
        self._expected = np.ones(elements, np.float32)

    def trip(self) -> float:
        """Seconds of one. Raises SideError for a value that is not NumPy's."""
        gradient = self._generator.random(self._expected.size, dtype=np.float32)
        start = time.perf_counter()
        push = self._store.push(self._key, gradient)
        value = self._store.pull(self._key).result()
        time_s = time.perf_counter() - start
        push.result()
        self._step += 1
        self._expected -= np.float32(RATE) * gradient
        apart = float(np.max(np.abs(value - self._expected)))
        if not apart <= TOLERANCE * self._step:
            raise SideError(f"step {self._step}: the value is {apart:g} from NumPy's")
        return time_s

    def round(self, case: Case, switch_interval_s: float, *, busy: bool) -> Round:
        """One round at that interval; `busy`: a thread computes meanwhile."""
        counts = self._store.statistics()
        before = counts.bytes_sent + counts.bytes_received
        kept = sys.getswitchinterval()
        sys.setswitchinterval(switch_interval_s)
        try:
            with computing() if busy else no_computing():
                times = [self.trip() for _ in range(case.warm_up + case.iterations)]
        finally:
            sys.setswitchinterval(kept)
        counts = self._store.statistics()
        wire = (counts.bytes_sent + counts.bytes_received - before) / len(times)
        return Round(tuple(times[case.warm_up :]), wire)


@contextmanager
def computing() -> Iterator[None]:
    """A thread that holds the interpreter whenever it can: integers alone, no call that lets go of it."""
    stop = False

    def compute() -> None:
        number = 1
        while not stop:
            for _ in range(10_000):
                number = (number * 48271) % 2147483647  # Park and Miller's generator

    thread = threading.Thread(target=compute, name="compute", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()


@contextmanager
def no_computing() -> Iterator[None]:
    yield


def rows_of(rounds: dict[str, list[Round]]) -> list[Row]:
    """The tuned setting beside each of the others."""
    return [
        row_of(CASE.name, CASE.transport, rounds[TUNED], PeerRounds(name, rounds[peer])) for peer, name in PEERS.items()
    ]


def measure(case: Case, count: int) -> dict[str, list[Round]]:
    """Rounds of every setting in turns, against a shard in a process of its own. Raises SideError or StoreError."""
    rounds: dict[str, list[Round]] = {name: [] for name in SETTINGS}
    with TemporaryDirectory(prefix="weft-benchmark-") as text, Group("weft", case, Path(text)) as group:
        description = description_of(case, default_slice_bytes(), (f"tcp://127.0.0.1:{free_port()}",))
        path = group.directory / "store.json"
        path.write_bytes(msgspec.json.encode(description))
        command = [sys.executable, "-m", "weft_kvstore", "--description", str(path), "--shard", "0"]
        group.serve("shard", [*command, "--bind", description.shards[0], "--exit-with-parent"], {})
        settings = LinkSettings(silence_s=START_S, same_host=False)
        with KVStore.connect(description, 0, wait_s=START_S, settings=settings) as store:
            trips = Trips(store, description.keys[0].key, case.shapes[0][0])
            for turn in range(count):
                names = list(SETTINGS)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    interval_s, busy = SETTINGS[name]
                    rounds[name].append(trips.round(case, interval_s, busy=busy))
    return rounds


def measured(case: Case, plan: Plan, progress: Progress) -> tuple[list[Row], dict[str, str]]:
    """The rows of `CASE`. Raises SideError."""
    progress(f"{case.name}: {plan.rounds} rounds of each setting")
    try:
        return rows_of(measure(case, plan.rounds)), {}
    except StoreError as error:
        raise SideError(str(error)) from error


if __name__ == "__main__":
    end_on_sigterm()
    tune_process()
    sys.exit(run("A 4 KiB round trip under a busy interpreter", [CASE], measuring=measured))
