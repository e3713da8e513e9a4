"""The steps of a table on one shard: pushes of rows put together from chunks, added up, measured at the gate, and
applied; and who waits for them. Pure.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array, exact_sum
from weft_kvstore.description.records import Mode
from weft_kvstore.merging.steps import (
    AsyncSteps,
    Complete,
    G,
    PushRefusedError,
    StepGate,
    Steps,
    SyncSteps,
    contradiction,
)
from weft_kvstore.merging.waiting import PIECE_BYTES, PIECE_ELEMENTS, Answer, PullWait, Work
from weft_kvstore.rows.rows import Rows, is_ascending
from weft_kvstore.tables.sets import SetsAhead, TableSets, Taken
from weft_kvstore.tables.values import KeyRules
from weft_kvstore.wire.messages import Reading

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


# --- A unit at the gate of its shard: a merged gradient is measured, and goes on as the slots have agreed on it -------


_NEVER: Final = -1


class TableGate(Generic[G]):
    """Invariant: `_measured` is the last step that the gate was told of, and each is told once."""

    __slots__ = ("_elements", "_gate", "_measured", "_spec")

    def __init__(self, gate: StepGate, spec: KeyRules, elements: Callable[[G], Array]) -> None:
        """`elements` gives all of a gradient, to be written: (elements), or (rows, width) where each row has a
        square."""
        self._gate = gate
        self._spec = spec
        self._elements = elements
        self._measured = _NEVER

    def passing(self, complete: Complete[G]) -> Generator[None, None, Complete[G] | None]:
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

    def _multiply(self, total: G, factor: float) -> Iterator[None]:
        if factor == 1.0:
            return
        elements = self._elements(total)
        for some in _pieces(elements):
            np.multiply(some, some.dtype.type(factor), out=some)
            if elements.size > PIECE_ELEMENTS:
                yield

    def _squares(self, total: G) -> Generator[None, None, int | None]:
        """The exact sum of what each row's, or piece's, squares add up to; None where that is not finite."""
        elements, found = self._elements(total), 0
        for some in _pieces(elements):
            squares = np.square(some, dtype=np.float64)
            exact = exact_sum(squares.sum(axis=1) if some.ndim > 1 else squares.sum(keepdims=True))
            if exact is None:
                return None
            found += exact
            if elements.size > PIECE_ELEMENTS:
                yield
        return found


def _pieces(elements: Array) -> Iterator[Array]:
    """Parts of an array along its first axis, of some `PIECE_ELEMENTS` elements."""
    width = elements.shape[1] if elements.ndim > 1 else 1
    a_piece = max(PIECE_ELEMENTS // max(width, 1), 1)
    return (elements[low : low + a_piece] for low in range(0, len(elements), a_piece))


# --- Pulls of a unit that cannot be answered yet ----------------------------------------------------------------------


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


# --- What a shard merges as one, a whole key or a table: its steps, its updates, and who waits for them ---------------


S = TypeVar("S")


class TableSteps(Work, ABC, Generic[G, S]):
    """A unit. `G` is a gradient, `S` a value that was set. `updates` counts the steps that changed it.

    An update is made in pieces, and what is half made is shown to nobody: `_changing` while it is, and no pull can be
    answered. `merge_is_due` while a merge is among what is to be done.
    """

    __slots__ = (
        "_changing",
        "_gate",
        "applied",
        "merge_is_due",
        "reached",
        "sets",
        "spec",
        "steps",
        "updates",
        "waits",
    )

    def __init__(
        self,
        spec: KeyRules,
        add: Callable[[G, G], G],
        elements: Callable[[G], Array],
        nothing_ahead: Callable[[], SetsAhead[S]],
        *,
        fills: bool = False,
    ) -> None:
        """`add` gives the sum of two gradients, and may write the first; `elements` is of `TableGate`; `nothing_ahead`
        and `fills` are of `TableSets`."""
        super().__init__(spec.priority)
        self.spec = spec
        self.steps: Steps[G] = (
            SyncSteps(spec.slots, spec.merge, add)
            if spec.mode is Mode.SYNC
            else AsyncSteps(spec.slots, spec.staleness if spec.mode is Mode.STALE else None)
        )
        self.sets: TableSets[S] = TableSets(spec, self.steps, nothing_ahead, fills=fills)
        self.waits = WaitingPulls()
        self.updates = 0
        self.applied: Callable[[int, int], None] | None = None
        """Told (slot, step) of each slot's gradient that is applied by itself, where somebody asks."""
        self.reached: Callable[[int], None] | None = None
        """Told each version that it has come to, where somebody asks."""
        self.merge_is_due = False
        self._gate: TableGate[G] | None = None if spec.gate is None else TableGate(spec.gate, spec, elements)
        self._changing = False

    @property
    def version(self) -> int:
        return self.steps.version

    @property
    def waiting_sets(self) -> int:
        """Parts that were set for versions that are still to come."""
        return self.sets.waiting

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that a merge works on: what a job's turn is measured by."""

    @property
    def piece_bytes(self) -> int:
        is_long = self._changing or len(self.todo) > int(self.merge_is_due)  # beside a merge there are long answers
        return PIECE_BYTES if is_long else min(self.nbytes, PIECE_BYTES)

    @abstractmethod
    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        """What answers a pull that can be answered; None after each piece."""

    def is_one_piece(self, wait: PullWait) -> bool:
        """Whether the answer is small enough to be given in one go."""
        return True

    @abstractmethod
    def lacks(self, wait: PullWait) -> bool:
        """Whether something that the pull asks for has never been set."""

    @abstractmethod
    def _lacks_for(self, total: G | None) -> bool:
        """Whether a step with this total cannot be gone through, for something was never set."""

    @abstractmethod
    def _apply(self, complete: Complete[G]) -> Iterator[None]:
        """Makes the update, which may write its total; stops after each piece. Raises RuleFailedError, MemoryError."""

    @abstractmethod
    def _put(self, value: S) -> None:
        """Takes a value that was set for what holds now."""

    @abstractmethod
    def _fill(self, value: S) -> None:
        """Takes what of a value at version 0 has never been set; the rest has gone on since."""

    @property
    @abstractmethod
    def _parts_begun(self) -> int:
        """The first step of which no part has come, nor of a later one."""

    def begun(self) -> tuple[int, str]:
        """The first step of which nothing has come, nor of a later one; and in words what has of the one before it."""
        step = max(self.steps.begun, self._parts_begun)
        return step, f"step {step - 1} of key {self.spec.key!r} has begun"

    def where(self, slot: int, step: int) -> str:
        """The words by which an error names it, a slot and a step."""
        return self.spec.where(slot, step)

    def at_step(self, step: int) -> str:
        """The words by which an error names it and a step of its own."""
        return self.spec.at_step(step)

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""
        self.steps.check(slot, step, self.spec.where(slot, step), pushes=pushes)

    def accept(self, slot: int, step: int, gradient: G | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing. What is taken over is written later.

        True if `merging` may now have something to do. What was in before changes nothing: exactly once holds.
        """
        return self.steps.accept(slot, step, gradient)

    def check_set(self, slot: int, version: int, origin: Hashable) -> None:
        """Raises PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        self.sets.check(slot, version, origin)

    def accept_set(self, version: int, value: S, origin: Hashable) -> bool:
        """Takes in what `check_set` lets pass, once. True if pulls or a merge may have waited for it."""
        taken = self.sets.accept(version, value, origin, is_changing=self._changing)
        if taken is Taken.NOW:
            self._put(value)
        elif taken is Taken.FIRST:
            self._fill(value)
        elif taken is Taken.BEHIND_UPDATE:
            instead = self.sets.relieve()
            if instead is not None:
                self._put(instead)
        return taken is not Taken.AGAIN and taken is not Taken.WAITS

    def merging(self) -> Generator[None, None, bool]:
        """Adds what has come, and makes the next update if it is due; stops after each piece. True if it made one.

        Raises RuleFailedError, and MemoryError where sums find none: it cannot go on then.
        """
        while (size := self.steps.merge_next()) is not None:
            if size >= PIECE_ELEMENTS:
                yield
        complete = self.steps.due()
        if complete is None or self._lacks_for(complete.total):
            return False
        if self.spec.hold is not None and self.spec.hold.holds(complete.step):
            return False
        if self._gate is not None:
            judged = yield from self._gate.passing(complete)
            if judged is None:
                return False
            complete = judged
        self._changing = True
        self.sets.reached = self.version + 1 if self.spec.mode is Mode.SYNC else 0
        if complete.total is not None or self.spec.update is Update.GRADIENT:
            yield from self._apply(complete)
        if complete.total is not None:
            self.updates += 1
            if self.applied is not None and complete.slot is not None:
                self.applied(complete.slot, complete.step)
        self.steps.advance()
        for value in self.sets.due():
            if value is not None:
                self._put(value)
            yield
        self._changing = False
        if self.reached is not None:
            self.reached(self.version)
        return True

    def passed_version(self, version: int) -> bool:
        """Whether what it was at a version is not to be had any more; a key to which nobody contributes is at every
        version."""
        now = self.sets.reached if self._changing else self.version
        return bool(self.spec.slots) and now > version

    def is_quiet_at(self, version: int) -> bool:
        """Whether it is at a version, with no update under way."""
        return not self._changing and (self.version == version or not self.spec.slots)

    def begin_at(self, version: int, updates: int) -> None:
        """Has a unit that nobody has pushed to begin at a version, after so many updates. Steps are of all slots."""
        self.updates = updates
        if self.spec.slots:
            assert isinstance(self.steps, SyncSteps)
            self.steps.begin_at(version)

    def answered_version(self, wait: PullWait) -> int:
        """The version that an answer to a pull tells."""
        return max(self.steps.seen(wait.slot, settled=wait.settled), wait.version)

    def can_answer(self, wait: PullWait) -> bool:
        if self._changing or not self.steps.is_at(wait.version, wait.slot, settled=wait.settled):
            return False
        if wait.reading is Reading.EXACT and self.version != wait.version and self.spec.slots:
            return False
        return not self.lacks(wait)

    def passed(self, wait: PullWait) -> str | None:
        """Why a pull of an exact version can never be answered, once it is beyond it."""
        if wait.reading is not Reading.EXACT or self.version <= wait.version or not self.spec.slots:
            return None
        return f"key {self.spec.key!r} is at version {self.version}: it has passed"

    def answerable(self) -> list[PullWait]:
        """The pulls that can be answered now; it keeps the others."""
        return self.waits.take(self.steps.newest, self.can_answer)

    def wait_for(self, wait: PullWait) -> None:
        """A pull that cannot be answered now."""
        slots = self.spec.slots
        counts = slots and (self.spec.mode is Mode.SYNC or wait.settled or wait.slot in slots)
        self.waits.add(wait, wait.version if counts else 0)  # Others see what there is.

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten."""
        self.steps.replace(slot, keep_due=self._changing)

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing."""
        key = f"key {self.spec.key!r}"
        if self.steps.is_at(wait.version, wait.slot, settled=wait.settled):
            return (f"{key} was never set" if self.lacks(wait) else f"{key} is being answered"), []
        due = self.steps.due()
        if due is not None:
            if self._lacks_for(due.total):
                return f"{key} was never set", []
            if self.spec.hold is not None and self.spec.hold.holds(due.step):
                return f"{key} has seen {self.version} steps; step {due.step} waits for {self.spec.hold.told()}", []
            at_gate = None if self._gate is None else self._gate.missing(due.step)
            if at_gate is not None:
                return f"{key} has seen {self.version} steps; {at_gate[0]}", at_gate[1]
        text, missing = self.steps.missing(wait.version, wait.slot, settled=wait.settled)
        return f"{key} {text}", missing


AnyTable: TypeAlias = TableSteps[Any, Any]
