"""The gate that holds a shard at a step until the slots have agreed on it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weft_kvstore.arrays import terms_of
from weft_kvstore.description.records import CommitDescription
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import STEPS_AHEAD
from weft_kvstore.step_outcome import LossScale, clip_factor

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
            return f"step {step} waits for the barriers of slots {', '.join(map(str, slots))}", slots
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
