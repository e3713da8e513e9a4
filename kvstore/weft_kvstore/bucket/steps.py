"""The steps of a bucket's slices: which are in and merged by slot, what is refused of them, and the gate that holds a
shard at one until the slots have agreed on it. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array, Range, greatest, least, ranges_where, terms_of
from weft_kvstore.description.records import CommitDescription
from weft_kvstore.settings import STEPS_AHEAD
from weft_kvstore.step_outcome import LossScale, clip_factor

# --- Why a push is refused, in words ----------------------------------------------------------------------------------


class PushRefusedError(Exception):
    """A push, a declaration or a set that contradicts what is there; the text names slot, key, slice and step."""


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


# --- Which steps of a bucket's slices are in and merged, by slot: numbers alone, over any run of slices at once -------


NEVER: Final = -1

STEPS_SAID: Final = STEPS_AHEAD + 1
"""Steps of which a slot may be in while another is in none of them: so many are told apart by what was said of them."""


class BucketSteps:
    """`came[p]`: how many steps of contributing slot number p are in, by slice, and `through[p]` how many are merged.
    `version` counts those that are merged of every slot and applied.

    A slot's steps are taken in one after the other: what comes early waits with whoever asks. Invariant: `version` <=
    `through` <= `came`, except that where slots go on by themselves `version` is the least of `through`.

    `places` has the number of each slot that contributes. `_said[step % STEPS_SAID, p]` is twice the step that was
    taken in last, and one more where the slot had nothing.
    """

    __slots__ = ("_said", "_together", "base", "came", "places", "slots", "through", "version")

    def __init__(self, slots: tuple[int, ...], slices: int, *, together: bool) -> None:
        """`together`: no slot may be far ahead of the others, for a step applies once all are in."""
        self.slots = slots
        self.places = {slot: place for place, slot in enumerate(slots)}
        self._together = together
        self.came = np.zeros((len(slots), slices), np.int64)
        self.through = np.zeros((len(slots), slices), np.int64)
        self.version = np.zeros(slices, np.int64)
        self.base = np.zeros(slices, np.int64)
        """The version with which a slice began."""
        self._said = np.full((STEPS_SAID, len(slots), slices), NEVER, np.int64)

    def place_of(self, slot: int, where: str) -> int:
        """The slot's number among those that contribute. Raises PushRefusedError."""
        if slot not in self.places:
            check_contributes(slot, self.slots, where)
        return self.places[slot]

    def take_next(self, place: int, step: int, first: int, stop: int) -> bool:
        """Takes in gradients of the next step of all of these slices, as nearly all are, where no slot is behind. False
        where they are any other: nothing has changed then."""
        if stop - first == 1:
            those = self.came[:, first].tolist()
            if those[place] != step or (self._together and step > min(those) + STEPS_AHEAD):
                return False
        else:
            came = self.came[place, first:stop]
            if not (came == step).all() or (self._together and step > self.came[:, first:stop].min() + STEPS_AHEAD):
                return False
        at = first if stop - first == 1 else slice(first, stop)
        self.came[place, at] = step + 1
        self._said[step % STEPS_SAID, place, at] = 2 * step
        return True

    def check(self, place: int, step: int, first: int, stop: int, *, pushes: bool, where: Callable[[int], str]) -> None:
        """Raises PushRefusedError where gradients of a slot, or its word that it has none, contradict what is there.
        `where` gives the words for a slice."""
        came = self.came[place, first:stop]
        if step < greatest(came):
            said = self._said[step % STEPS_SAID, place, first:stop]
            wrong = (said == _word(step, pushes=not pushes)) & self._open(place, step, first, stop)
            if wrong.any():
                told = contradiction(before=not pushes)
                raise PushRefusedError(f"{where(first + int(wrong.argmax()))}: {told}")
        those = self.came[:, first:stop] if self._together else came
        if step > least(those) + STEPS_AHEAD:
            at = first + int((those.min(axis=0) if self._together else came).argmin())
            behind = int(self.came[:, at].min()) if self._together else int(came.min())
            missing = [slot for slot, there in zip(self.slots, self.came[:, at], strict=True) if there <= behind]
            of = missing if self._together else [self.slots[place]]
            raise PushRefusedError(
                f"{where(at)}: more than {STEPS_AHEAD} steps ahead of step {behind}, which waits for slots {of}"
            )

    def accept(self, place: int, step: int, first: int, stop: int, *, pushes: bool) -> tuple[list[Range], list[Range]]:
        """Takes in what `check` lets pass: the ranges that are new, and those that come too early to be taken in."""
        came = self.came[place, first:stop]
        if least(came) == step == greatest(came):
            taken, early = [(first, stop)], []
        else:
            taken, early = ranges_where(came == step, first), ranges_where(came < step, first)
        for low, high in taken:
            self.came[place, low:high] = step + 1
            self._said[step % STEPS_SAID, place, low:high] = 2 * step + (not pushes)
        return taken, early

    def untouched(self, first: int, stop: int) -> bool:
        """Whether nobody has said anything of any step of these slices."""
        return bool((self.came[:, first:stop] == self.base[first:stop]).all())

    def begin_at(self, version: int, first: int, stop: int) -> None:
        """Untouched slices begin at a version."""
        for counts in (self.came, self.through, self.version, self.base):
            counts[..., first:stop] = version

    def forget(self, place: int) -> None:
        """What of a slot is not merged never came."""
        self.came[place] = self.through[place]
        said = self._said[:, place]
        said[said >= _word(self.through[place], pushes=True)] = NEVER

    def missing_in(self, slice_: int, step: int) -> list[int]:
        """The slots that are not in with a step of a slice."""
        return [slot for slot, came in zip(self.slots, self.came[:, slice_].tolist(), strict=True) if came <= step]

    def missing(self, slice_: int, version: int, of: Sequence[int] | None) -> tuple[str, list[int]]:
        """What a pull of a version waits for at a slice, in words, and the slots that are missing; `of`: the numbers of
        the slots whose own steps count, None for all of them together."""
        if of is None:
            at = int(self.version[slice_])
            missing = self.missing_in(slice_, at)
            return f"has seen {at} steps; {waits(at, missing)}", missing
        behind = {self.slots[p]: int(self.came[p, slice_]) for p in of if self.through[p, slice_] < version}
        first = min(behind.values(), default=version)
        missing = [slot for slot, step in behind.items() if step == first and step < version]
        return (
            f"has seen {first} steps of slots {numbers([self.slots[p] for p in of])}; {waits(first, missing)}",
            missing,
        )

    def _open(self, place: int, step: int, first: int, stop: int) -> Array:
        """At which slices a step is not applied, so that what is said of it still counts."""
        done = self.version if self._together else self.through[place]
        found: Array = done[first:stop] <= step
        return found


def _word(step: int | Array, *, pushes: bool) -> Any:
    """What a slot says of a step, as a number; those of later steps are larger."""
    return 2 * step + int(not pushes)


# --- The gate of a shard whose steps are committed --------------------------------------------------------------------
# A step is | once
# ----------|----------------------------------------------------------------------------------------------
# measured  | every slot's barrier is in, and every unit of this shard has merged it and holds its update
# committed | a slot, which has added up what all shards measured, has said so; the units go on
#
# All that follows from a commit (clipping, whether the step is skipped, the next loss scale) is a function of the
# commits so far, which are the same on every shard.


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
