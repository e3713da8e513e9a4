"""On the way of a table's steps: pushes of rows put together from chunks, the gate at which sums are measured, and
pulls that wait. Pure.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array, exact_sum
from weft_kvstore.merging.steps import (
    Complete,
    PushRefusedError,
    StepGate,
    contradiction,
)
from weft_kvstore.merging.waiting import PIECE_ELEMENTS, PullWait
from weft_kvstore.rows.rows import Rows, is_ascending
from weft_kvstore.tables.values import KeyRules

# --- Pushes of rows that have come in part: a slot is in when all chunks of its push have come ------------------------
# What is held is what has come: a number of chunks that a peer claims takes no memory. What came as one run stays one
# part.


class ChunkRun(NamedTuple):
    """Chunks `first` to before `stop` of a push, and their rows, which are one part."""

    first: int
    stop: int
    rows: Rows


_FIRST: Final = attrgetter("first")
_STOP: Final = attrgetter("stop")


@dataclass(slots=True)
class _Push:
    """`runs` are in order, and none overlaps another: what one more is beside is found without a look at all of them,
    of which there are as many as a slow link's frames. `came` of the `chunks` have."""

    chunks: int
    runs: list[ChunkRun] = field(default_factory=list)
    came: int = 0


class RowPushes:
    """Runs of chunks by slot and step; every chunk but the last has `a_chunk` rows. Invariants: none of a step that the
    slot is in; all ids of a push ascend."""

    __slots__ = ("_a_chunk", "_open")

    def __init__(self, a_chunk: int) -> None:
        self._a_chunk = a_chunk
        self._open: dict[tuple[int, int], _Push] = {}

    def check_nothing(self, slot: int, step: int, where: str) -> None:
        """Raises PushRefusedError where the slot declares nothing and has pushed."""
        if (slot, step) in self._open:
            raise PushRefusedError(f"{where}: {contradiction(before=True)}")

    def fitting(self, slot: int, step: int, run: ChunkRun, chunks: int, where: str) -> list[ChunkRun]:
        """What of a run of a push of so many chunks has not come. Raises PushRefusedError where it contradicts what is
        there, or itself."""
        push = self._open.get((slot, step))
        if push is not None and push.chunks != chunks:
            raise PushRefusedError(f"{where}: a push of {push.chunks} parts before and of {chunks} now")
        before = push.runs if push is not None else []
        new = self._missing(before, run)
        for one in new:
            wrong = self._out_of_order(before, one)
            if wrong is not None:
                raise PushRefusedError(f"{where}: rows of chunk {wrong} are not between those beside it")
        return new

    def add(self, slot: int, step: int, runs: list[ChunkRun], chunks: int) -> Rows | None:
        """Takes in what `fitting` has given. All rows, once they are complete."""
        push = self._open.get((slot, step))
        if push is None:
            if len(runs) == 1 and runs[0].stop - runs[0].first == chunks:
                return runs[0].rows
            push = self._open[slot, step] = _Push(chunks)
        for one in runs:
            insort(push.runs, one, key=_FIRST)
            push.came += one.stop - one.first
        if push.came < chunks:
            return None
        del self._open[slot, step]
        return Rows.of([part for run in push.runs for part in run.rows.parts])

    @property
    def begun(self) -> int:
        """The first step of which no part has come, nor of a later one."""
        return max((step + 1 for _, step in self._open), default=0)

    def drop(self, slot: int) -> None:
        """Forgets what a slot has not completed."""
        for place in [one for one in self._open if one[0] == slot]:
            del self._open[place]

    def _missing(self, before: list[ChunkRun], run: ChunkRun) -> list[ChunkRun]:
        found, at = [], run.first
        for number in range(bisect_right(before, at, key=_STOP), bisect_left(before, run.stop, key=_FIRST)):
            one = before[number]
            if one.first > at:
                found.append(self._part(run, at, one.first))
            at = one.stop
        if at < run.stop:
            found.append(self._part(run, at, run.stop))
        return found

    def _part(self, run: ChunkRun, first: int, stop: int) -> ChunkRun:
        if (first, stop) == (run.first, run.stop):
            return run
        some = slice((first - run.first) * self._a_chunk, (stop - run.first) * self._a_chunk)
        return ChunkRun(first, stop, Rows(run.rows.ids[some], run.rows.values[some]))

    def _out_of_order(self, before: list[ChunkRun], run: ChunkRun) -> int | None:
        """The first chunk whose rows are not between those beside it. Those of each chunk ascend."""
        ids, at = run.rows.ids, bisect_left(before, run.first, key=_FIRST)
        if at and before[at - 1].stop == run.first and not before[at - 1].rows.ids[-1] < ids[0]:
            return run.first
        if not is_ascending(ids):
            return run.first + int(np.argmin(ids[1:] > ids[:-1]) + 1) // self._a_chunk
        if at < len(before) and before[at].first == run.stop and not ids[-1] < before[at].rows.ids[0]:
            return run.stop - 1
        return None


# --- A table at the gate of its shard: a merged gradient is measured, and goes on as the slots have agreed on it ------


_NEVER: Final = -1


class TableGate:
    """Invariant: `_measured` is the last step that the gate was told of, and each is told once."""

    __slots__ = ("_gate", "_measured", "_spec")

    def __init__(self, gate: StepGate, spec: KeyRules) -> None:
        self._gate = gate
        self._spec = spec
        self._measured = _NEVER

    def passing(self, complete: Complete[Rows]) -> Generator[None, None, Complete[Rows] | None]:
        """The update as the slots have agreed on it: clipped, or without a gradient where the step is skipped. None
        before they have; the first time what it amounts to is measured. The gradient is written."""
        step, total = complete.step, complete.total
        is_summed = total is not None and self._spec.update is not Update.MEAN
        if self._measured != step:
            squares: int | None = 0
            if total is not None and is_summed:
                if not self._spec.unscaled:
                    yield from self._multiply(total, 1.0 / self._gate.scale)
                squares = yield from self._squares(total)
            self._measured = step
            self._gate.hold(step, squares)
        verdict = self._gate.verdict(step)
        if verdict is None:
            return None
        if verdict.factor is None:
            return Complete(step, 0, None)
        if total is not None and is_summed:
            yield from self._multiply(total, verdict.factor)
        return complete

    def missing(self, step: int) -> tuple[str, list[int]] | None:
        """What a step that was measured here waits for, in words, and the slots that are missing; None before it is."""
        return self._gate.missing(step) if self._measured == step else None

    def _multiply(self, total: Rows, factor: float) -> Iterator[None]:
        if factor == 1.0:
            return
        elements = total.values
        for some in _pieces(elements):
            np.multiply(some, some.dtype.type(factor), out=some)
            if elements.size > PIECE_ELEMENTS:
                yield

    def _squares(self, total: Rows) -> Generator[None, None, int | None]:
        """The exact sum of what each row's squares add up to; None where that is not finite."""
        elements, found = total.values, 0
        for some in _pieces(elements):
            squares = np.square(some, dtype=np.float64)
            exact = exact_sum(squares.sum(axis=1))
            if exact is None:
                return None
            found += exact
            if elements.size > PIECE_ELEMENTS:
                yield
        return found


def _pieces(elements: Array) -> Iterator[Array]:
    """Rows of an array (rows, width), of some `PIECE_ELEMENTS` elements."""
    a_piece = max(PIECE_ELEMENTS // max(elements.shape[1], 1), 1)
    return (elements[low : low + a_piece] for low in range(0, len(elements), a_piece))


# --- Pulls of a table that cannot be answered yet ---------------------------------------------------------------------


LEAST_WAITS: Final = 64
"""Pulls that may wait before those that were given up are looked for."""


class WaitingPulls:
    """By the version that they wait for, and in the order in which they came. Of those that were given up no more are
    kept than there are others, or `LEAST_WAITS`."""

    __slots__ = ("_came", "_most", "_waits")

    def __init__(self) -> None:
        self._waits: list[tuple[int, int, PullWait]] = []
        self._most = LEAST_WAITS
        self._came = 0

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[PullWait]:
        return (wait for _, _, wait in sorted(self._waits))

    def add(self, wait: PullWait, version: int) -> None:
        """One more, which cannot be answered before a version."""
        self._came += 1
        heapq.heappush(self._waits, (version, self._came, wait))
        if len(self._waits) > self._most:  # A peer that asks and gives up again must not fill the memory.
            self._waits = [one for one in self._waits if not one[2].dropped]
            heapq.heapify(self._waits)
            self._most = max(2 * len(self._waits), LEAST_WAITS)

    def take(self, version: int, is_ready: Callable[[PullWait], bool]) -> list[PullWait]:
        """Those that can be answered at a version, which wait no more. Others than of it and before are not looked
        at."""
        ready: list[PullWait] = []
        kept: list[tuple[int, int, PullWait]] = []
        while self._waits and self._waits[0][0] <= version:
            one = heapq.heappop(self._waits)
            wait = one[2]
            if wait.dropped:
                continue
            if is_ready(wait):
                ready.append(wait)
            else:
                kept.append(one)
        for one in kept:
            heapq.heappush(self._waits, one)
        return ready
