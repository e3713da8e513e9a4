"""What a shard merges as one: a whole key or a table. Its steps, what was set, and who waits. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.exact_sum import exact_sum
from weft_kvstore.description.records import Merge, Mode
from weft_kvstore.hyper.agreement import HyperAgreement
from weft_kvstore.hyper.key_hyper import KeyHyper
from weft_kvstore.lot.update import RULE_ERRORS, RuleFailedError
from weft_kvstore.merging.answer import Answer
from weft_kvstore.merging.async_steps import AsyncSteps
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.merging.steps import Complete, G, PushRefusedError, Steps
from weft_kvstore.merging.sync_steps import SyncSteps
from weft_kvstore.merging.work import PIECE_BYTES, PIECE_ELEMENTS, Work
from weft_kvstore.settings import SETS_AHEAD, SETS_WAITING
from weft_kvstore.units.sets_ahead import SetsAhead
from weft_kvstore.wire.messages import Reading

S = TypeVar("S")

LEAST_WAITS: Final = 64
"""Pulls of a unit that may wait before those that were given up are looked for."""

SETS_KEPT: Final = 1024
"""How many of the last parts that were set a unit knows again, should they be sent again after a broken connection."""


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What a shard has to know of a key that it merges as one. `unscaled`: gradients arrive divided by the loss scale.
    `lot` is its number; `given` says that there is no first
    value: it is set. `a_piece`: elements that the rule updates at once. `gate`: what all units
    of the shard wait for before they apply a step, where steps are committed. `hold`: what holds a step whose
    hyper-parameters are being changed."""

    key: str
    lot: int
    priority: int
    dtype: np.dtype[Any]
    slots: tuple[int, ...]
    update: Update
    merge: Merge
    mode: Mode
    staleness: int
    rule: Rule
    hyper: KeyHyper
    given: bool = False
    a_piece: int = PIECE_ELEMENTS
    gate: StepGate | None = None
    unscaled: bool = False
    hold: HyperAgreement | None = None

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the key's state arrays."""
        return tuple(self.rule.state) if self.update is Update.RULE else ()


class UnitState(Work, ABC, Generic[G, S]):
    """A unit. `G` is a gradient, `S` a value that was set. `updates` counts the steps that changed it.

    An update is made in pieces, and what is half made is shown to nobody: `_changing` while it is, and no pull can be
    answered. `_reached` is the version that it leads to. `_held` is the last step that was measured, where steps are
    committed. `merge_is_due` while a merge is among what is to be done.
    Invariant: `_sets` holds only versions beyond the present one.
    """

    __slots__ = (
        "_changing",
        "_held",
        "_late",
        "_most_waits",
        "_puts_late",
        "_reached",
        "_sets",
        "_taken",
        "applied",
        "index",
        "merge_is_due",
        "spec",
        "steps",
        "updates",
        "waits",
    )

    def __init__(self, spec: KeyRules, index: int, add: Callable[[G, G], G]) -> None:
        super().__init__(spec.priority)
        self.spec = spec
        self.index = index
        self.steps: Steps[G] = (
            SyncSteps(spec.slots, spec.merge, add)
            if spec.mode is Mode.SYNC
            else AsyncSteps(spec.slots, spec.staleness if spec.mode is Mode.STALE else None)
        )
        self.updates = 0
        self.applied: Callable[[int, int], None] | None = None
        """Told (slot, step) of each slot's gradient that is applied by itself, where somebody asks."""
        self.merge_is_due = False
        self.waits: list[PullWait] = []
        self._changing = False
        self._reached = 0
        self._held = -1
        self._late: deque[S] = deque()
        self._puts_late = False
        self._most_waits = LEAST_WAITS
        self._sets: dict[int, SetsAhead[S]] = {}
        self._taken: deque[Hashable] = deque(maxlen=SETS_KEPT)

    @property
    def version(self) -> int:
        return self.steps.version

    @property
    def waiting_sets(self) -> int:
        """Parts that were set for versions that are still to come."""
        return sum(len(ahead) for ahead in list(self._sets.values()))

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that a merge works on: what a job's turn is measured by."""

    @property
    def piece_bytes(self) -> int:
        is_long = self._changing or len(self.todo) > int(self.merge_is_due)  # beside a merge there are long answers
        return PIECE_BYTES if is_long else min(self.nbytes, PIECE_BYTES)

    @abstractmethod
    def named(self, slot: int) -> str:
        """The words by which an error names it and a slot."""

    @abstractmethod
    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        """What answers a pull that can be answered; None after each piece."""

    def answered_version(self, wait: PullWait) -> int:
        """The version that an answer to a pull tells."""
        return max(self.steps.seen(wait.slot, settled=wait.settled), wait.version)

    def is_one_piece(self, wait: PullWait) -> bool:
        """Whether the answer is small enough to be given in one go."""
        return True

    @abstractmethod
    def lacks(self, wait: PullWait) -> bool:
        """Whether something that the pull asks for has never been set."""

    @abstractmethod
    def _apply(self, complete: Complete[G]) -> Iterator[None]:
        """Makes the update, which may write its total; stops after each piece. Raises RuleFailedError, MemoryError."""

    @abstractmethod
    def _gradient_elements(self, total: G) -> Array:
        """All elements of a gradient, to be written: (elements), or (rows, width) where each row has a square."""

    @abstractmethod
    def _lacks_for(self, total: G | None) -> bool:
        """Whether a step with this total cannot be gone through, for something was never set."""

    @abstractmethod
    def _put(self, value: S) -> None:
        """Takes a value that was set for what holds now."""

    def _fill(self, value: S) -> None:
        """Takes what of a value at version 0 has never been set; the rest has gone on since."""
        raise NotImplementedError

    @property
    def _fills(self) -> bool:
        """Whether parts of it may have no value at a later version."""
        return False

    @abstractmethod
    def _nothing_ahead(self) -> SetsAhead[S]:
        """Where values wait for a version. Raises MemoryError."""

    def begun(self) -> tuple[int, str]:
        """See `Changed`."""
        step = max(self.steps.begun, self._parts_begun)
        return step, f"step {step - 1} of key {self.spec.key!r} has begun"

    @property
    def _parts_begun(self) -> int:
        """The first step of which no part has come, nor of a later one."""
        return 0

    def where(self, slot: int, step: int) -> str:
        """The words by which an error names it, a slot and a step."""
        return f"{self.named(slot)}, step {step}"

    def at_step(self, step: int) -> str:
        """The words by which an error names it and a step of its own."""
        return f"key {self.spec.key!r}, slice {self.index}, step {step}"

    @contextmanager
    def _rule_runs(self, step: int) -> Iterator[None]:
        """Around the rule's own call, for what it raises is the user's to hear of. Raises RuleFailedError."""
        try:
            yield
        except RULE_ERRORS as error:
            told = f"rule {self.spec.rule.name!r} failed on {self.at_step(step)}: {error}"
            raise RuleFailedError(told) from error

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""
        self.steps.check(slot, step, self.where(slot, step), pushes=pushes)

    def accept(self, slot: int, step: int, gradient: G | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing. What is taken over is written later.

        True if `merge` may now have something to do. What was in before changes nothing: exactly once holds.
        """
        return self.steps.accept(slot, step, gradient)

    def check_set(self, slot: int, version: int, origin: Hashable) -> None:
        """Raises PushRefusedError for a version that has passed, or of which there is a value already."""
        if origin in self._taken or self._holds_at_once:
            return
        where = f"{self.named(slot)}, version {version}: the value cannot be set"
        if version == 0 and not self.spec.given:
            raise PushRefusedError(f"{where}: version 0 is the initializer's")
        if version < self._passed and not (version == 0 and self._fills):
            raise PushRefusedError(f"{where}: it is at version {self._passed} already")
        if version > self.version + SETS_AHEAD:
            raise PushRefusedError(f"{where}: more than {SETS_AHEAD} ahead of version {self.version}")
        if version > self.version and version not in self._sets and len(self._sets) >= SETS_WAITING:
            raise PushRefusedError(f"{where}: values wait for versions {sorted(self._sets)} already")

    def accept_set(self, version: int, value: S, origin: Hashable) -> bool:
        """Takes in what `check_set` lets pass, once. True if pulls or a merge may have waited for it."""
        if origin in self._taken:
            return False
        self._taken.append(origin)
        is_first = version == 0 and self.spec.given and self.spec.mode is not Mode.SYNC and bool(self.spec.slots)
        if is_first or (version < self._passed and not self._holds_at_once):
            self._fill(value)  # A first value is given once: a process that starts anew does not undo what was learned.
            return True
        if version > self.version and not self._holds_at_once:
            if version not in self._sets:
                self._sets[version] = self._nothing_ahead()
            self._sets[version].add(value)
            return False
        if self._changing:
            self._late.append(value)
            if self._puts_late:  # Who brings one puts one: what waits grows no more, and so the update ends.
                self._put(self._late.popleft())
        else:
            self._put(value)
        return True

    @property
    def _passed(self) -> int:
        """The version before which nothing can be set any more: what an update under way has read is one of those."""
        return max(self.version, self._reached)

    @property
    def _holds_at_once(self) -> bool:
        """Whether a value that is set waits for no step: slots go on by themselves, or nobody contributes."""
        return self.spec.mode is not Mode.SYNC or not self.spec.slots

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
        if self.spec.gate is not None:
            judged = yield from self._through_gate(complete, self.spec.gate)
            if judged is None:
                return False
            complete = judged
        self._changing = True
        self._reached = self.version + 1 if self.spec.mode is Mode.SYNC else 0
        if complete.total is not None or self.spec.update is Update.GRADIENT:
            yield from self._apply(complete)
        if complete.total is not None:
            self.updates += 1
            if self.applied is not None and complete.slot is not None:
                self.applied(complete.slot, complete.step)
        self.steps.advance()
        yield from self._put_waiting()
        self._changing = False
        return True

    def _through_gate(self, complete: Complete[G], gate: StepGate) -> Generator[None, None, Complete[G] | None]:
        """The update as the slots have agreed on it: clipped, or without a gradient where the step is skipped. None
        before they have; the first time what it amounts to is measured. The gradient is written."""
        step, total = complete.step, complete.total
        if self._held != step:
            squares: int | None = 0
            if total is not None and self.spec.update is not Update.MEAN:
                if not self.spec.unscaled:
                    yield from self._multiply(total, 1.0 / gate.scale)
                squares = yield from self._squares(total)
            self._held = step
            gate.hold(step, squares)
        verdict = gate.verdict(step)
        if verdict is None:
            return None
        if verdict.factor is None:
            return Complete(step, 0, None)
        if total is not None and self.spec.update is not Update.MEAN:
            yield from self._multiply(total, verdict.factor)
        return complete

    def _multiply(self, total: G, factor: float) -> Iterator[None]:
        if factor == 1.0:
            return
        elements = self._gradient_elements(total)
        for some in _pieces(elements):
            np.multiply(some, some.dtype.type(factor), out=some)
            if elements.size > PIECE_ELEMENTS:
                yield

    def _squares(self, total: G) -> Generator[None, None, int | None]:
        """The exact sum of what each row's, or piece's, squares add up to; None where that is not finite."""
        elements, found = self._gradient_elements(total), 0
        for some in _pieces(elements):
            squares = np.square(some, dtype=np.float64)
            exact = exact_sum(squares.sum(axis=1) if some.ndim > 1 else squares.sum(keepdims=True))
            if exact is None:
                return None
            found += exact
            if elements.size > PIECE_ELEMENTS:
                yield
        return found

    def _put_waiting(self) -> Iterator[None]:
        """What was set for the version that begins, and what has come since."""
        ahead = self._sets.pop(self.version, None)
        if ahead is not None:
            for value in ahead.values():
                if value is not None:
                    self._put(value)
                yield
        self._puts_late = True
        while self._late:
            self._put(self._late.popleft())
            yield
        self._puts_late = False

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
        ready: list[PullWait] = []
        waits, self.waits = self.waits, []
        for wait in waits:
            if wait.dropped:
                continue
            if self.can_answer(wait):
                ready.append(wait)
            else:
                self.waits.append(wait)
        return ready

    def wait_for(self, wait: PullWait) -> None:
        """A pull that cannot be answered now."""
        self.waits.append(wait)
        if len(self.waits) > self._most_waits:  # A peer that asks and gives up again must not fill the memory.
            self.waits = [one for one in self.waits if not one.dropped]
            self._most_waits = max(2 * len(self.waits), LEAST_WAITS)

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten."""
        self.steps.replace(slot, keep_due=self._changing)

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing."""
        key = f"key {self.spec.key!r}"
        if not self.steps.is_at(wait.version, wait.slot, settled=wait.settled):
            due = self.steps.due()
            if due is not None and self._lacks_for(due.total):
                return f"{key} was never set", []
            if self.spec.hold is not None and due is not None and self.spec.hold.holds(due.step):
                return f"{key} has seen {self.version} steps; step {due.step} waits for {self.spec.hold.told()}", []
            if self.spec.gate is not None and due is not None and self._held == due.step:
                told, missing = self.spec.gate.missing(due.step)
                return f"{key} has seen {self.version} steps; {told}", missing
            text, missing = self.steps.missing(wait.version, wait.slot, settled=wait.settled)
            return f"{key} {text}", missing
        return (f"{key} was never set" if self.lacks(wait) else f"{key} is being answered"), []


def _pieces(elements: Array) -> Iterator[Array]:
    """Parts of an array along its first axis, of some `PIECE_ELEMENTS` elements."""
    width = elements.shape[1] if elements.ndim > 1 else 1
    a_piece = max(PIECE_ELEMENTS // max(width, 1), 1)
    return (elements[low : low + a_piece] for low in range(0, len(elements), a_piece))


AnyUnit: TypeAlias = UnitState[Any, Any]
