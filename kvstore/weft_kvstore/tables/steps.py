"""The steps of a table on one shard: its merges and updates, and who waits for them. Pure."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, Final, Generic, TypeAlias, TypeVar

from weft_graph.program import Update
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import Mode
from weft_kvstore.merging.pulls import Answer, PullWait
from weft_kvstore.merging.steps import AsyncSteps, Complete, G, Steps, SyncSteps
from weft_kvstore.merging.work import PIECE_BYTES, PIECE_ELEMENTS, Work
from weft_kvstore.tables.pushes import TableGate
from weft_kvstore.tables.sets import SetsAhead, TableSets, Taken
from weft_kvstore.tables.spec import KeyRules
from weft_kvstore.wire.messages import Reading

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

    __slots__ = ("_changing", "_gate", "applied", "merge_is_due", "sets", "spec", "steps", "updates", "waits")

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
        return True

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
