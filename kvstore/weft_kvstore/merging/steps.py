"""Which steps of a slice or a table are in, merged and applied: all slots together, or each by itself; and the gate
that holds a shard at a step until the slots have agreed on it. Pure.

| A step is | once                                                                                         |
|-----------|----------------------------------------------------------------------------------------------|
| measured  | every slot's barrier is in, and every unit of this shard has merged it and holds its update   |
| committed | a slot, which has added up what all shards measured, has said so; the units go on             |

All that follows from a commit (clipping, whether the step is skipped, the next loss scale) is a function of the commits
so far, which are the same on every shard.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from weft_kvstore.arrays import terms_of
from weft_kvstore.description.records import CommitDescription, Merge
from weft_kvstore.settings import STEPS_AHEAD
from weft_kvstore.step_outcome import LossScale, clip_factor

# --- Which steps of a slice, a whole key or a table are in, merged and applied, whatever a gradient is there ----------
# The two ways are `SyncSteps` and `AsyncSteps`.


class Sized(Protocol):
    """A gradient: `size` elements."""

    @property
    def size(self) -> int: ...


G = TypeVar("G", bound=Sized)


class PushRefusedError(Exception):
    """A push, a declaration or a set that contradicts what is there; the text names slot, key, slice and step."""


@dataclass(frozen=True, slots=True)
class Complete(Generic[G]):
    """An update that is due: of job step `step`, the sum of `contributors` gradients; None where there was none. `slot`
    is whose gradient it is, where each is applied by itself."""

    step: int
    contributors: int
    total: G | None
    slot: int | None = None


class Steps(Protocol[G]):
    """The steps of all slots. `version` counts those that every slot is through with."""

    @property
    def version(self) -> int: ...

    @property
    def newest(self) -> int:
        """How many steps the slot is through with that is furthest ahead: no pull sees a later version."""

    @property
    def begun(self) -> int:
        """The first step of which nothing has come of any slot, nor of a later one."""

    def check(self, slot: int, step: int, where: str, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""

    def is_over(self, slot: int, step: int) -> bool:
        """Whether what the slot may still say of this step changes nothing."""

    def accept(self, slot: int, step: int, gradient: G | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing. True if it may be due at once. What
        was in before changes nothing: exactly once holds."""

    def merge_next(self) -> int | None:
        """Adds the next gradient that has come and can be added: how many elements. None where there is none."""

    def due(self) -> Complete[G] | None:
        """The next update, once `merge_next` has completed it. It stays the next one until `advance`."""

    def advance(self) -> None:
        """The update that is due was applied."""

    def replace(self, slot: int, *, keep_due: bool = False) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten. `keep_due`: the
        update that is due is being applied."""

    def seen(self, slot: int, *, settled: bool) -> int:
        """The version that a pull of this slot can have."""

    def is_at(self, version: int, slot: int, *, settled: bool) -> bool:
        """Whether a pull of `version` can be answered. A key to which nobody contributes is at every version."""

    def missing(self, version: int, slot: int, *, settled: bool) -> tuple[str, list[int]]:
        """What a pull of a version still waits for, in words, and the slots that have not pushed it."""


def contradiction(*, before: bool) -> str:
    """In words: a slot has pushed and declares nothing, or the other way round."""
    was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
    return f"the slot {was} before and {now} now"


def check_contributes(slot: int, slots: Sequence[int], where: str) -> None:
    if slot not in slots:
        raise PushRefusedError(f"{where}: only slots {list(slots)} contribute to it")


def waits(step: int, missing: list[int]) -> str:
    return f"step {step} waits for slots {numbers(missing) or 'none: it is being merged'}"


def numbers(slots: list[int]) -> str:
    return ", ".join(map(str, slots))


# --- Steps that apply once every contributing slot has pushed or declared nothing -------------------------------------
# Gradients are added in slot order: the longest complete prefix at once, later slots wait. The sum is g[a] + g[b] + ...
# of the slots that pushed, from the left, so it is the same bits for any order of arrival. `Merge.ARRIVAL` adds in the
# order of arrival instead.


@dataclass(slots=True)
class _OpenStep(Generic[G]):
    """A step that is not applied. `settled[slot]` says whether the slot pushed (True) or declared nothing (False);
    `waiting` has what is not merged, in order of arrival; the sum is of `contributors` gradients."""

    settled: dict[int, bool] = field(default_factory=dict)
    waiting: dict[int, G | None] = field(default_factory=dict)
    merged: int = 0
    contributors: int = 0
    total: G | None = None

    def merge_next(self, slots: Sequence[int], merge: Merge, add: Callable[[G, G], G]) -> int | None:
        """Adds the next one that can be added, as `Steps.merge_next` does."""
        if not self.waiting or self.merged == len(slots):
            return None
        slot = slots[self.merged] if merge is Merge.SLOT else next(iter(self.waiting))
        if slot not in self.waiting:
            return None
        gradient = self.waiting.pop(slot)
        self.merged += 1
        if gradient is None:
            return 0
        self.contributors += 1
        if self.total is None:
            self.total = gradient
            return 0
        self.total = add(self.total, gradient)
        return self.total.size


class SyncSteps(Generic[G]):
    """Invariants: `_open` holds only steps from `version` on; a slot that is merged or waits in one is settled in it.

    `add(total, gradient)` gives their sum; it may write and keep the total, and is the only one that has it.
    """

    __slots__ = ("_add", "_merge", "_open", "_slots", "_version")

    def __init__(self, slots: tuple[int, ...], merge: Merge, add: Callable[[G, G], G]) -> None:
        self._slots = slots
        self._merge = merge
        self._add = add
        self._version = 0
        self._open: dict[int, _OpenStep[G]] = {}

    @property
    def version(self) -> int:
        return self._version

    @property
    def newest(self) -> int:
        return self._version

    @property
    def begun(self) -> int:
        return max((step + 1 for step, one in self._open.items() if one.settled), default=self._version)

    def check(self, slot: int, step: int, where: str, *, pushes: bool) -> None:
        check_contributes(slot, self._slots, where)
        if step < self._version:
            return
        open_step = self._open.get(step)
        before = open_step.settled.get(slot) if open_step is not None else None
        if before is not None and before != pushes:
            raise PushRefusedError(f"{where}: {contradiction(before=before)}")
        if step > self._version + STEPS_AHEAD and step > (first := self._first_incomplete()) + STEPS_AHEAD:
            raise PushRefusedError(
                f"{where}: more than {STEPS_AHEAD} steps ahead of step {first}, "
                f"which waits for slots {self._missing_in(first)}"
            )

    def is_over(self, slot: int, step: int) -> bool:
        return step < self._version or (step in self._open and slot in self._open[step].settled)

    def accept(self, slot: int, step: int, gradient: G | None) -> bool:
        if self.is_over(slot, step):
            return False
        open_step = self._open.setdefault(step, _OpenStep())
        open_step.settled[slot] = gradient is not None
        open_step.waiting[slot] = gradient
        return step == self._version

    def merge_next(self) -> int | None:
        open_step = self._open.get(self._version)
        return None if open_step is None else open_step.merge_next(self._slots, self._merge, self._add)

    def due(self) -> Complete[G] | None:
        open_step = self._open.get(self._version)
        if open_step is None or open_step.merged < len(self._slots):
            return None
        return Complete(self._version, open_step.contributors, open_step.total)

    def advance(self) -> None:
        del self._open[self._version]
        self._version += 1

    def begin_at(self, version: int) -> None:
        """Nothing has come: this step is the next."""
        self._version = version

    def replace(self, slot: int, *, keep_due: bool = False) -> None:
        for open_step in self._open.values():
            if slot in open_step.waiting:
                del open_step.waiting[slot]
                del open_step.settled[slot]

    def seen(self, slot: int, *, settled: bool) -> int:
        return self._version

    def is_at(self, version: int, slot: int, *, settled: bool) -> bool:
        return self._version >= version or not self._slots

    def missing(self, version: int, slot: int, *, settled: bool) -> tuple[str, list[int]]:
        missing = self._missing_in(self._version)
        return f"has seen {self._version} steps; {waits(self._version, missing)}", missing

    def _missing_in(self, step: int) -> list[int]:
        open_step = self._open.get(step)
        settled = open_step.settled if open_step is not None else {}
        return [slot for slot in self._slots if slot not in settled]

    def _first_incomplete(self) -> int:
        """The first step that some slot is not in; steps before it may wait to be merged."""
        step = self._version
        while step in self._open and not self._missing_in(step):
            step += 1
        return step


# --- Steps that apply as they arrive: each slot's one by one, in step order -------------------------------------------


class AsyncSteps(Generic[G]):
    """Invariants: `_through[slot]` counts the steps of a slot that are applied; `_waiting[slot]` holds later ones;
    `arrived` has every slot and step that waits and comes next in its slot, in order of arrival."""

    __slots__ = ("_staleness", "_through", "_waiting", "arrived")

    def __init__(self, slots: tuple[int, ...], staleness: int | None = None) -> None:
        """`staleness`: how many steps a slot may see of its own that others are not through with; None: any number."""
        self._staleness = staleness
        self._through = dict.fromkeys(slots, 0)
        self._waiting: dict[int, dict[int, G | None]] = {slot: {} for slot in slots}
        self.arrived: deque[tuple[int, int]] = deque()

    @property
    def version(self) -> int:
        return min(self._through.values(), default=0)

    @property
    def newest(self) -> int:
        return max(self._through.values(), default=0)

    @property
    def begun(self) -> int:
        waiting = [step + 1 for steps in self._waiting.values() for step in steps]
        return max([*self._through.values(), *waiting], default=0)

    def check(self, slot: int, step: int, where: str, *, pushes: bool) -> None:
        check_contributes(slot, tuple(self._through), where)
        waiting = self._waiting[slot]
        if step in waiting and (before := waiting[step] is not None) != pushes:
            raise PushRefusedError(f"{where}: {contradiction(before=before)}")
        if step > self._through[slot] + STEPS_AHEAD and step > (first := self._first_missing(slot)) + STEPS_AHEAD:
            text = f"more than {STEPS_AHEAD} steps ahead of step {first}, which waits for slots [{slot}]"
            raise PushRefusedError(f"{where}: {text}")

    def is_over(self, slot: int, step: int) -> bool:
        return step < self._through[slot] or step in self._waiting[slot]

    def accept(self, slot: int, step: int, gradient: G | None) -> bool:
        if self.is_over(slot, step):
            return False
        waiting = self._waiting[slot]
        is_next = step == self._first_missing(slot)
        waiting[step] = gradient
        if not is_next:
            return False
        while step in waiting:  # this one, and those behind it that came before it
            self.arrived.append((slot, step))
            step += 1
        return True

    def merge_next(self) -> int | None:
        return None  # Each gradient is an update of its own.

    def due(self) -> Complete[G] | None:
        if not self.arrived:
            return None
        slot, step = self.arrived[0]
        gradient = self._waiting[slot][step]
        return Complete(step, 0 if gradient is None else 1, gradient, slot)

    def advance(self) -> None:
        slot, step = self.arrived.popleft()
        del self._waiting[slot][step]
        self._through[slot] = step + 1

    def replace(self, slot: int, *, keep_due: bool = False) -> None:
        if slot not in self._waiting:
            return
        due = self.arrived[0] if keep_due else None
        self._waiting[slot] = {step: one for step, one in self._waiting[slot].items() if (slot, step) == due}
        self.arrived = deque(one for one in self.arrived if one[0] != slot or one == due)

    def seen(self, slot: int, *, settled: bool) -> int:
        return self.version if settled else self._through.get(slot, self.version)

    def is_at(self, version: int, slot: int, *, settled: bool) -> bool:
        if not self._through:
            return True
        if (settled or slot in self._through) and self.seen(slot, settled=settled) < version:
            return False
        return settled or self._staleness is None or self.version >= version - self._staleness

    def missing(self, version: int, slot: int, *, settled: bool) -> tuple[str, list[int]]:
        if self._staleness is not None and not settled and self._through.get(slot, version) >= version:
            return self.missing(version - self._staleness, slot, settled=True)
        of = [one for one in self._through if settled or one == slot]
        behind = {one: self._first_missing(one) for one in of if self._through[one] < version}
        first = min(behind.values(), default=version)
        missing = [one for one, step in behind.items() if step == first and step < version]
        return f"has seen {first} steps of slots {numbers(of)}; {waits(first, missing)}", missing

    def _first_missing(self, slot: int) -> int:
        step = self._through[slot]
        while step in self._waiting[slot]:
            step += 1
        return step


STEPS_KEPT: Final = 4
"""Committed steps of which a shard still answers: a slot that has lost its connection may ask again for two."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A shard's part of a step's merged gradient: squares of its elements, as terms whose exact sum they are, and
    whether all elements are finite."""

    squares: list[float]
    finite: bool
    loss_scale: LossScale


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a step: `factor` for its merged gradient, or None where it is skipped."""

    norm: float
    finite: bool
    factor: float | None


@dataclass(slots=True)
class _Step:
    slots: set[int] = field(default_factory=set)
    held: int = 0
    total: int = 0
    finite: bool = True
    measurement: Measurement | None = None
    verdict: Verdict | None = None


class StepGate:
    """Invariant: steps are committed one after the other; `_next` is the first that is not. `tell` is called with a
    step at the moment it is measured."""

    def __init__(self, commit: CommitDescription, slots: int) -> None:
        self.tell: Callable[[int], None] = lambda step: None
        self._commit = commit
        self._slots = slots
        self._units = 0
        self._next = 0
        self._steps: dict[int, _Step] = {}
        self._scale = LossScale(commit.loss_scaling.initial if commit.loss_scaling is not None else 1.0)

    @property
    def scale(self) -> float:
        """What the loss of the first step that is not committed was multiplied by."""
        return self._scale.scale

    @property
    def loss_scale(self) -> LossScale:
        """The same, with the finite steps since it last changed."""
        return self._scale

    def begin_at(self, step: int, loss_scale: LossScale | None) -> None:
        """Nothing has arrived: `step` is the first that is not committed, and its loss scale is this."""
        self._next = step
        self._scale = self._scale if loss_scale is None else loss_scale

    def expect(self, units: int) -> None:
        """So many units of this shard take part."""
        self._units = units

    def arrive(self, slot: int, step: int) -> None:
        """A slot's barrier of a step is in. Raises PushRefusedError for a step that nobody can be at."""
        if step > self._next + STEPS_AHEAD:
            told = f"slot {slot}, step {step}: more than {STEPS_AHEAD} steps ahead of step {self._next}"
            raise PushRefusedError(f"{told}, which is not committed")
        if step < self._next:
            if step not in self._steps:
                raise PushRefusedError(f"slot {slot}, step {step}: committed long ago; this is step {self._next}")
            return
        self._steps.setdefault(step, _Step()).slots.add(slot)
        self._look(step)

    def hold(self, step: int, squares: int | None, units: int = 1) -> None:
        """So many units hold their update of the step; `squares` as `exact_sum` gives them, None where they are not
        finite."""
        one = self._steps.setdefault(step, _Step())
        one.held += units
        one.total += squares or 0
        one.finite = one.finite and squares is not None
        self._look(step)

    def measurement(self, step: int) -> Measurement | None:
        """What the shard's units have merged of a step, once it is measured."""
        one = self._steps.get(step)
        return None if one is None else one.measurement

    def commit(self, step: int, *, norm: float, finite: bool) -> bool:
        """A slot says what all shards measured. True if it is the first; the units may go on then.

        Raises PushRefusedError for a step that is not measured, or that was committed otherwise.
        """
        one = self._steps.get(step)
        if one is None or one.measurement is None:
            raise PushRefusedError(f"commit of step {step}, which is not measured: step {self._next} is the next")
        if one.verdict is not None:
            if _bits(one.verdict.norm, finite=one.verdict.finite) != _bits(norm, finite=finite):
                was = f"norm {one.verdict.norm!r}, finite {one.verdict.finite}"
                raise PushRefusedError(f"commit of step {step}: norm {norm!r}, finite {finite}; it was {was}")
            return False
        one.verdict = Verdict(norm, finite, self._factor(norm, finite=finite))
        if self._commit.loss_scaling is not None:
            self._scale = self._scale.after(finite=finite, scaling=self._commit.loss_scaling)
        self._next = step + 1
        self._steps.pop(step - STEPS_KEPT, None)
        if self._next in self._steps:
            self._look(self._next)
        return True

    def verdict(self, step: int) -> Verdict | None:
        """What becomes of the step, once it is committed."""
        one = self._steps.get(step)
        return None if one is None else one.verdict

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its barriers of steps that are not measured are forgotten."""
        for one in self._steps.values():
            if one.measurement is None:
                one.slots.discard(slot)

    def missing(self, step: int) -> tuple[str, list[int]]:
        """What a step waits for once this shard's units hold it, in words, and the slots that are missing."""
        one = self._steps.get(step, _Step())
        slots = [slot for slot in range(self._slots) if slot not in one.slots]
        if slots:
            return f"step {step} waits for the barriers of slots {numbers(slots)}", slots
        if one.measurement is None:
            return f"step {step} waits for {self._units - one.held} units that are not merged", []
        return f"step {step} is measured and waits to be committed", []

    def _look(self, step: int) -> None:
        one = self._steps[step]
        if one.measurement is None and len(one.slots) == self._slots and one.held == self._units and step == self._next:
            squares = terms_of(one.total) if one.finite else []
            one.measurement = Measurement(squares, one.finite, self._scale)
            self.tell(step)

    def _factor(self, norm: float, *, finite: bool) -> float | None:
        if not finite and self._commit.skips:
            return None
        return 1.0 if self._commit.clip_norm is None else clip_factor(norm, self._commit.clip_norm)


def _bits(norm: float, *, finite: bool) -> tuple[bytes, bool]:
    return struct.pack("<d", norm), finite
