"""A table's steps, and what is on their way: pushes of rows put together from chunks, the gate at which sums are
measured, and values that were set: at once, or for a version that is still to come. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Generator, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import numpy as np

from weft_kvstore.arrays import Array, exact_sum
from weft_kvstore.bucket.bucket import PIECE_ELEMENTS
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.state import BucketSteps, contradiction
from weft_kvstore.bucket.update import RULE_ERRORS, RuleFailedError, UpdateSpec
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.rows import Rows, is_ascending, last_rows, merged
from weft_kvstore.settings import SETS_AHEAD, SETS_WAITING

# --- How a table is merged and updated --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(UpdateSpec):
    """`given` says that there is no first value: it is set."""

    key: str
    priority: int
    given: bool

    def where(self, slot: int, step: int) -> str:
        """The words by which an error names a slot, the key and a step."""
        return f"slot {slot}, key {self.key!r}, step {step}"

    def at_step(self, step: int) -> str:
        """The words by which an error names the key and a step of its own."""
        return f"key {self.key!r}, slice 0, step {step}"

    @contextmanager
    def rule_runs(self, step: int) -> Iterator[None]:
        """Around the rule's own call, for what it raises is the user's to hear of. Raises RuleFailedError."""
        try:
            yield
        except RULE_ERRORS as error:
            raise self.failed(step, error) from error

    def failed(self, step: int, error: Exception) -> RuleFailedError:
        """What the rule's own call of a step has raised, in words."""
        told = str(error) or type(error).__name__  # A MemoryError has no words.
        return RuleFailedError(f"rule {self.rule.name!r} failed on {self.at_step(step)}: {told}")


@dataclass(frozen=True, slots=True)
class Complete:
    """An update that is due: of job step `step`, the sum of its gradients; None where there was none. `slot` is whose
    gradient it is, where each is applied by itself."""

    step: int
    total: Rows | None
    slot: int | None = None


# --- Which steps of a table are in, merged and applied: all slots together, or each by itself -------------------------
# Where slots go together gradients are added as a bucket's are: in slot order the longest complete prefix at once,
# while later ones wait, so that the sum is the same bits for any order of arrival; or in the order of arrival.


class TableSteps:
    """`counts` are a table's steps as those of a bucket of one slice. `_waiting` has what came and is not merged, by
    number of its slot and step, in order of arrival; `_arrived` what of it is an update of its own, and comes next in
    its slot. `_merged` slots are in the sum of the next step."""

    def __init__(
        self, slots: tuple[int, ...], merge: Merge, *, together: bool = True, staleness: int | None = None
    ) -> None:
        """`staleness`: how many steps a slot may see of its own that others are not through with; None: any number."""
        self.counts = BucketSteps(slots, 1, together=together)
        self.version = 0
        """How many steps every slot is through with."""
        self._together = together
        self._by_slot = merge is Merge.SLOT
        self._staleness = staleness
        self._waiting: dict[tuple[int, int], Rows | None] = {}
        self._arrived: deque[tuple[int, int]] = deque()
        self._merged = 0
        self._total: Rows | None = None

    def begin_at(self, version: int) -> None:
        """Where nobody has said anything, steps begin at a version."""
        self.counts.begin_at(version, 0, 1)
        self.version = version

    @property
    def holds(self) -> bool:
        """Whether anything has come that is not applied."""
        return bool(self._waiting or self._merged)

    @property
    def newest(self) -> int:
        """How many steps the slot is through with that is furthest ahead: no pull sees a later version."""
        return self.version if self._together else int(self.counts.through.max(initial=0))

    @property
    def begun(self) -> int:
        """The first step of which nothing has come of any slot, nor of a later one."""
        return max([int(self.counts.came.max(initial=0)), *(step + 1 for _, step in self._waiting)])

    def check(self, slot: int, step: int, where: str, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""
        place = self.counts.places.get(slot)
        place = self.counts.place_of(slot, where) if place is None else place
        self.counts.check(place, step, 0, 1, pushes=pushes, where=lambda _: where)
        if (place, step) in self._waiting and (self._waiting[place, step] is not None) != pushes:  # It came early.
            raise PushRefusedError(f"{where}: {contradiction(before=not pushes)}")

    def take_next(self, slot: int, step: int, gradient: Rows) -> bool | None:
        """Takes in a slot's gradient where it is of the slot's next step, and nothing of a later one waits: what
        `accept` says. None where it is any other: nothing has changed then."""
        place = self.counts.places.get(slot)
        if place is None or (place, step) in self._waiting or (place, step + 1) in self._waiting:
            return None
        if not self.counts.take_next(place, step, 0, 1):
            return None
        self._waiting[place, step] = gradient
        if self._together:
            return step == self.version
        self._arrived.append((place, step))
        return True

    def is_over(self, slot: int, step: int) -> bool:
        """Whether what the slot may still say of this step changes nothing."""
        place = self.counts.places[slot]
        return step < self.counts.came[place, 0] or (place, step) in self._waiting

    def accept(self, slot: int, step: int, gradient: Rows | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing. True if it may be due at once. What
        was in before changes nothing: exactly once holds."""
        if self.is_over(slot, step):
            return False
        place, first = self.counts.places[slot], step
        self._waiting[place, step] = gradient
        while (place, step) in self._waiting and self.counts.came[place, 0] == step:  # and what came before it was due
            self.counts.accept(place, step, 0, 1, pushes=self._waiting[place, step] is not None)
            if not self._together:
                self._arrived.append((place, step))
            step += 1
        return first == self.version if self._together else step > first

    def merge_next(self) -> int | None:
        """Adds the next gradient that has come and can be added: how many elements. None where there is none."""
        step = self.version
        if not self._together:
            return None  # Each gradient is an update of its own.
        place = self._merged if self._by_slot else next((place for place, of in self._waiting if of == step), -1)
        if (place, step) not in self._waiting:
            return None
        gradient = self._waiting.pop((place, step))
        self._merged += 1
        self.counts.through[place] = step + 1
        if gradient is None:
            return 0
        if self._total is None:
            self._total = gradient
            return 0
        self._total = merged(self._total, gradient)
        return self._total.size

    def due(self) -> Complete | None:
        """The next update, once `merge_next` has completed it. It stays the next one until `advance`."""
        slots = self.counts.slots
        if self._together:
            is_due = 0 < len(slots) == self._merged
            return Complete(self.version, self._total) if is_due else None
        if not self._arrived:
            return None
        place, step = self._arrived[0]
        gradient = self._waiting[place, step]
        return Complete(step, gradient, slots[place])

    def advance(self) -> None:
        """The update that is due was applied."""
        counts = self.counts
        if self._together:
            self._merged, self._total = 0, None
            counts.version += 1
            self.version += 1
            return
        place, step = self._arrived.popleft()
        del self._waiting[place, step]
        counts.through[place] = step + 1
        self.version = counts.version[0] = int(counts.through.min())

    def replace(self, slot: int, *, keep_due: bool = False) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten. `keep_due`: the
        update that is due is being applied."""
        place = self.counts.places.get(slot)
        if place is None:
            return
        due = self._arrived[0] if keep_due and self._arrived else None
        self._waiting = {one: rows for one, rows in self._waiting.items() if one[0] != place or one == due}
        self._arrived = deque(one for one in self._arrived if one in self._waiting)
        self.counts.forget(place)
        if due is not None and due[0] == place:
            self.counts.accept(place, due[1], 0, 1, pushes=self._waiting[due] is not None)

    def seen(self, slot: int, *, settled: bool) -> int:
        """The version that a pull of this slot can have."""
        place = None if self._together or settled else self.counts.places.get(slot)
        return self.version if place is None else int(self.counts.through[place, 0])

    def is_at(self, version: int, slot: int, *, settled: bool) -> bool:
        """Whether a pull of `version` can be answered. A key to which nobody contributes is at every version."""
        if not self.counts.slots:
            return True
        if self._together:
            return self.version >= version
        if (settled or slot in self.counts.places) and self.seen(slot, settled=settled) < version:
            return False
        return settled or self._staleness is None or self.version >= version - self._staleness

    def missing(self, version: int, slot: int, *, settled: bool) -> tuple[str, list[int]]:
        """What a pull of a version still waits for, in words, and the slots that have not pushed it."""
        if self._together:
            return self.counts.missing(0, version, None)
        if self._staleness is not None and not settled:
            place = self.counts.places.get(slot)
            if place is None or self.counts.through[place, 0] >= version:
                return self.missing(version - self._staleness, slot, settled=True)
        of = [place for place, one in enumerate(self.counts.slots) if settled or one == slot]
        return self.counts.missing(0, version, of)


# --- Values that were set for a version that is still to come: of one place the last one ------------------------------


class RowsAhead:
    """Rows of one version: what is set once more takes no more memory, at most twice."""

    def __init__(self) -> None:
        self._parts: list[Rows] = []
        self._kept = 0

    def __len__(self) -> int:
        """How many parts wait."""
        return int(bool(self._parts))

    def add(self, value: Rows) -> None:
        """One more value. Raises MemoryError."""
        if not len(value):
            return
        self._parts.append(value)
        if sum(map(len, self._parts)) > 2 * self._kept:
            self._parts = [self.rows()]
            self._kept = len(self._parts[0])

    def rows(self) -> Rows:
        """What was set: of each row the last value."""
        parts = self._parts
        return last_rows(np.concatenate([one.ids for one in parts]), np.concatenate([one.values for one in parts]))


# --- Values that were set of a table: which of them hold at once, and which wait for a version or an update's end -----


SETS_KEPT: Final = 1024
"""How many of the last parts that were set a table knows again, should they be sent again after a broken connection."""


class SetRows(Protocol):
    """The table whose rows are set."""

    def fill(self, value: Rows) -> None:
        """Sets those of the rows that were never set."""

    def put(self, value: Rows) -> None:
        """Sets rows."""


class TableSets:
    """`reached` is the version that the last update leads to: what one under way has read is set no more.

    Invariants: `_ahead` holds only versions beyond the present one; `_late` is empty while no update is under way.
    """

    __slots__ = ("_a_piece", "_ahead", "_is_ending", "_late", "_spec", "_steps", "_table", "_taken", "reached")

    def __init__(self, spec: TableSpec, steps: TableSteps, table: SetRows, a_piece: int) -> None:
        """`a_piece` rows are put at once."""
        self._spec = spec
        self._steps = steps
        self._table = table
        self._a_piece = a_piece
        self.reached = 0
        self._ahead: dict[int, RowsAhead] = {}
        self._late: deque[Rows] = deque()
        self._is_ending = False
        self._taken: deque[Hashable] = deque(maxlen=SETS_KEPT)

    @property
    def waiting(self) -> int:
        """Parts that were set for versions that are still to come; may be asked on any thread."""
        return sum(len(ahead) for ahead in list(self._ahead.values()))

    def check(self, slot: int, version: int, origin: Hashable) -> None:
        """Raises PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        if origin in self._taken or self._spec.holds_at_once:
            return
        now, passed = self._steps.version, self._passed
        where = f"slot {slot}, key {self._spec.key!r}, version {version}: the value cannot be set"
        if version == 0 and not self._spec.given:
            raise PushRefusedError(f"{where}: version 0 is the initializer's")
        if version < passed and not (version == 0 and self._spec.given):
            raise PushRefusedError(f"{where}: it is at version {passed} already")
        if version > now + SETS_AHEAD:
            raise PushRefusedError(f"{where}: more than {SETS_AHEAD} ahead of version {now}")
        if version > now and version not in self._ahead and len(self._ahead) >= SETS_WAITING:
            raise PushRefusedError(f"{where}: values wait for versions {sorted(self._ahead)} already")

    def accept(self, version: int, value: Rows, origin: Hashable, *, is_changing: bool) -> bool:
        """Takes in what `check` lets pass, once: sets it now, or keeps it for its version or for the end of the update
        that is under way (`is_changing`). True if pulls or a merge may have waited for it."""
        if origin in self._taken:
            return False
        self._taken.append(origin)
        spec, at_once = self._spec, self._spec.holds_at_once
        is_first = version == 0 and spec.given and not spec.together and bool(spec.slots)
        if is_first or (version < self._passed and not at_once):
            self._table.fill(value)  # Given once: a process that starts anew does not undo what was learned.
            return True
        if version > self._steps.version and not at_once:
            if version not in self._ahead:
                self._ahead[version] = RowsAhead()
            self._ahead[version].add(value)
            return False
        if is_changing:
            self._late.append(value)
            if not self._is_ending:
                return True
            value = self._late.popleft()  # One for each that comes: what waits grows no more, and the update ends.
        self._table.put(value)
        return True

    def put_due(self) -> Iterator[None]:
        """At the end of an update: puts what was set for the version that begins, and what has come since; stops after
        each part."""
        ahead = self._ahead.pop(self._steps.version, None)
        for ids, values in ahead.rows().pieces(self._a_piece) if ahead is not None else ():
            self._table.put(Rows(ids, values))
            yield
        self._is_ending = True
        while self._late:
            self._table.put(self._late.popleft())
            yield
        self._is_ending = False

    @property
    def _passed(self) -> int:
        """The version before which nothing can be set any more."""
        return max(self._steps.version, self.reached)


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

    @property
    def is_empty(self) -> bool:
        """Whether no push has come in part."""
        return not self._open

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
        new = self._missing(before, run) if before else [run]
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

    __slots__ = ("_gate", "_measured")

    def __init__(self, gate: StepGate) -> None:
        self._gate = gate
        self._measured = _NEVER

    def passing(self, complete: Complete) -> Generator[None, None, Complete | None]:
        """The update as the slots have agreed on it: clipped, or without a gradient where the step is skipped. None
        before they have; the first time what it amounts to is measured. The gradient is written."""
        step, total = complete.step, complete.total
        if self._measured != step:
            squares: int | None = 0
            if total is not None:
                yield from self._multiply(total, 1.0 / self._gate.scale)
                squares = yield from self._squares(total)
            self._measured = step
            self._gate.hold(step, squares)
        verdict = self._gate.verdict(step)
        if verdict is None:
            return None
        if verdict.factor is None:
            return Complete(step, None)
        if total is not None:
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
