"""Pushes of rows that have come in part: a slot is in when all chunks of its push have come. Pure.

What is held is what has come: a number of chunks that a peer claims takes no memory. What came as one run stays one
part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from weft_kvstore.merging.steps import PushRefusedError, contradiction
from weft_kvstore.tables.rows import Rows, is_ascending


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
