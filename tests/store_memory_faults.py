"""Stores whose memory fails once: at each line that makes an array, or copies bytes, in a run of its own."""

from __future__ import annotations

import linecache
import random
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import numpy as np

from store_simulation import Simulation
from weft_kvstore.bucket.values import BucketValues
from weft_kvstore.client.core import ClientCore
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.shard.core import ShardCore

ROOT: Final = Path(sys.modules["weft_kvstore"].__file__ or "").parent
NO_ROOM: Final = "no room"

ALLOCATES: Final = re.compile(
    r"\bnp\.(?!dtype|errstate)\w+\(|\b(bytes|bytearray|bytes_of|memoryview|encode|exact_sum|ranges_\w+)\("
    r"|\.(astype|compress|copied|copy|encode|join|merging|payload|put|reshape|take|written)\("
)
"""Of a line: that it makes arrays, or copies bytes, or calls what does so at once."""

Line: TypeAlias = tuple[str, int]


class MemoryFault:
    """Raises MemoryError when a line is met for the first time; without one, `met` has those that could fail."""

    def __init__(self, line: Line | None = None) -> None:
        self.line = line
        self.met: dict[Line, None] = {}
        self._depth = 0

    def run(self, work: Callable[[], None]) -> None:
        """Calls it, and fails in it."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            work()
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._at_line if frame.f_code.co_filename.startswith(str(ROOT)) else None

    def _at_line(self, frame: FrameType, event: str, argument: object) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if event != "line" or line in self.met:
            return self._at_line
        if self.line is None:
            if ALLOCATES.search(linecache.getline(*line)):
                self.met[line] = None
        elif line == self.line:
            self.met[line] = None
            raise MemoryError(NO_ROOM)
        return self._at_line


class Faulty(Simulation):
    """A simulation in which the memory of the shards, or of the clients, fails once. `calls` have begun, by name."""

    def __init__(
        self, description: StoreDescription, fault: MemoryFault, side: type[ShardCore | ClientCore], **options: Any
    ) -> None:
        self._fault, self._side = fault, side
        super().__init__(description, **options)
        self.jobs = [core.job for core in self.shards]
        self.calls: list[tuple[str, Future[Any]]] = []
        self.choose = random.Random(5)

    def _run(self, core: ShardCore | ClientCore, work: Callable[[], object]) -> None:
        def run() -> None:
            super(Faulty, self)._run(core, work)

        self._fault.run(run) if isinstance(core, self._side) else run()

    def call(self, name: str, future: Future[Any]) -> None:
        self.calls.append((name, future))

    def happen(self, events: int) -> None:
        """Lets so many things happen."""
        for _ in range(events):
            self.step(self.choose)

    def end(self) -> None:
        """Until all calls have ended, and nothing is under way."""
        self.finish(self.choose, *[future for _, future in self.calls])
        self.settle(self.choose)

    def outcomes(self) -> list[tuple[str, object]]:
        """What each call has ended with."""
        found: list[tuple[str, object]] = []
        for name, future in self.calls:
            error = future.exception(0)
            found.append((name, as_bytes(future.result(0)) if error is None else error))
        return found

    def leaks(self) -> list[str]:
        """What is held though nothing is under way any more."""
        found = []
        for core, job in zip(self.shards, self.jobs, strict=True):
            links = core.links
            for peer in [*links.clients.values(), *links.leaving]:
                for identity in [*peer.connections]:
                    if core.job is None or identity != peer.identity:
                        links.ended(identity)
            held = {
                "tasks": core.work.queue,
                "frames in clients' memory": links.in_place,
                "clients that are gone": links.leaving,
                "clients of a job that failed": core.job is None and (links.peers or links.clients),
            }
            for peer in links.clients.values():
                held |= {
                    f"pulls of slot {peer.slot}": peer.pulls or peer.open_entries or peer.ids_bytes or peer.failed,
                    f"requests of slot {peer.slot}": peer.unrepeated or peer.measures,
                    f"values for slot {peer.slot}": peer.outbox.waiting or peer.outbox.frames,
                    f"bytes for slot {peer.slot}": peer.outbox.queued_bytes or peer.outbox.in_flight_bytes,
                    f"shared frames of slot {peer.slot}": peer.shared_frames.frames,
                }
            assert job is not None
            for part in job.all_buckets.values() if core.job is not None else ():
                held[f"pulls of bucket {part.spec.number}"] = part.pulled_versions
            for bucket in job.buckets.values() if core.job is not None else ():
                update = bucket.update
                arrays: list[BucketValues | None] = [update.values, update.previous, *update.state.values()]
                arrays.append(update.encoded and update.encoded.values)
                blocks = [one[2] for array in arrays if array is not None for one in array.sections(0, bucket.count)]
                held[f"pins of bucket {bucket.spec.number}"] = any(one.pinned.any() for one in blocks)
            for table in job.tables.values():
                held[f"answers of table {table.spec.number}"] = core.job and (table.to_answer or table.has_task)
            found += [name for name, what in held.items() if what]
        return found


def each_fault(history: Callable[[MemoryFault], Faulty]) -> Iterator[tuple[Line, Faulty, list[tuple[str, object]]]]:
    """A history, over and over: the line that fails, the store at the end, and the outcomes without a fault."""
    undisturbed = MemoryFault()
    store = history(undisturbed)
    store.end()
    expected = store.outcomes()
    assert not store.leaks()
    assert len(undisturbed.met) > 20
    for line in undisturbed.met:
        fault = MemoryFault(line)
        store = history(fault)
        store.end()
        assert [*fault.met] == [line]
        yield line, store, expected


def as_bytes(value: Any) -> object:
    """A result, to be compared bit by bit."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(name, as_bytes(one)) for name, one in value.items()]
    return [*map(as_bytes, value)] if isinstance(value, list) else value
