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
from weft_kvstore.store import LossScale, clip_factor

# A step is | once
# ----------|----------------------------------------------------------------------------------------------
# measured  | every slot's barrier is in, and every slice and table of this shard has merged it and holds its update
# committed | a slot, which has added up what all shards measured, has said so; they go on
#
# All that follows from a commit (clipping, whether the step is skipped, the next loss scale) is a function of the
# commits so far, which are the same on every shard.


COMMITS_KEPT: Final = 4
"""Committed steps of which a shard still answers: a slot that has lost its connection may ask again for two."""


@dataclass(slots=True)
class GateStep:
    """A step at the gate: the slots whose barrier is in, how many slices and tables hold its update, the sum of the
    squares of its merged gradient (see `exact_sum`) and whether that is finite.

    Once it is measured, `loss_scale` is that of its step. Once it is committed, `outcome` is the norm of all shards'
    merged gradients and whether all of them are finite, and `factor` is what they are multiplied by; None where the
    step is skipped.
    """

    slots: set[int] = field(default_factory=set)
    held: int = 0
    total: int = 0
    finite: bool = True
    loss_scale: LossScale | None = None
    outcome: tuple[float, bool] | None = None
    factor: float | None = None

    @property
    def squares(self) -> list[float]:
        """Terms whose exact sum is the sum of this shard's squares; none where that is not finite."""
        return terms_of(self.total) if self.finite else []


class StepGate:
    """Invariant: steps are committed one after the other; `_next` is the first that is not, and `loss_scale` what its
    loss is multiplied by. `on_measured` is called with a step at the moment it is measured."""

    def __init__(self, commit: CommitDescription, slots: int) -> None:
        self.on_measured: Callable[[int], None] = lambda step: None
        self.loss_scale = LossScale(commit.loss_scaling.initial if commit.loss_scaling is not None else 1.0)
        self._commit = commit
        self._slots = slots
        self._slices = 0
        self._next = 0
        self._steps: dict[int, GateStep] = {}

    def begin_at(self, step: int, loss_scale: LossScale | None) -> None:
        """Nothing has arrived: `step` is the first that is not committed, and its loss scale is this."""
        self._next = step
        self.loss_scale = loss_scale or self.loss_scale

    def expect(self, slices: int) -> None:
        """So many slices and tables of this shard take part."""
        self._slices = slices

    def arrive(self, slot: int, step: int) -> None:
        """A slot's barrier of a step is in. Raises PushRefusedError for a step that nobody can be at."""
        if step > self._next + STEPS_AHEAD:
            detail = f"slot {slot}, step {step}: more than {STEPS_AHEAD} steps ahead of step {self._next}"
            raise PushRefusedError(f"{detail}, which is not committed")
        if step < self._next:
            if step not in self._steps:
                now = f"this is step {self._next}, with which a process connects that takes the slot over"
                raise PushRefusedError(f"slot {slot}, step {step}: committed long ago; {now}")
            return
        self._steps.setdefault(step, GateStep()).slots.add(slot)
        self._measure(step)

    def hold(self, step: int, squares: int | None, slices: int = 1) -> None:
        """So many slices and tables hold their update of the step; `squares` as `exact_sum` gives them, None where they
        are not finite."""
        one = self._steps.setdefault(step, GateStep())
        one.held += slices
        one.total += squares or 0
        one.finite = one.finite and squares is not None
        self._measure(step)

    def measured(self, step: int) -> GateStep | None:
        """A step once it is measured: what the shard has merged of it."""
        one = self._steps.get(step)
        return one if one is not None and one.loss_scale is not None else None

    def committed(self, step: int) -> GateStep | None:
        """A step once it is committed: what becomes of it."""
        one = self._steps.get(step)
        return one if one is not None and one.outcome is not None else None

    def commit(self, step: int, *, norm: float, finite: bool) -> bool:
        """A slot says what all shards measured. True if it is the first; they may go on then.

        Raises PushRefusedError for a step that is not measured, or that was committed otherwise.
        """
        one = self.measured(step)
        if one is None:
            raise PushRefusedError(f"commit of step {step}, which is not measured: step {self._next} is the next")
        if one.outcome is not None:
            was, is_finite = one.outcome
            if (struct.pack("<d", was), is_finite) != (struct.pack("<d", norm), finite):
                detail = f"norm {norm!r}, finite {finite}; it was norm {was!r}, finite {is_finite}"
                raise PushRefusedError(f"commit of step {step}: {detail}")
            return False
        one.outcome = norm, finite
        if finite or not self._commit.skips:
            one.factor = 1.0 if self._commit.clip_norm is None else clip_factor(norm, self._commit.clip_norm)
        if self._commit.loss_scaling is not None:
            self.loss_scale = self.loss_scale.after(finite=finite, scaling=self._commit.loss_scaling)
        self._next = step + 1
        self._steps.pop(step - COMMITS_KEPT, None)
        if self._next in self._steps:
            self._measure(self._next)
        return True

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its barriers of steps that are not measured are forgotten."""
        for one in self._steps.values():
            if one.loss_scale is None:
                one.slots.discard(slot)

    def missing(self, step: int) -> tuple[str, list[int]]:
        """What a step waits for once this shard holds all of it, in words, and the slots that are missing."""
        one = self._steps.get(step, GateStep())
        slots = [slot for slot in range(self._slots) if slot not in one.slots]
        if slots:
            return f"step {step} waits until end_step is called by slots {', '.join(map(str, slots))}", slots
        if one.loss_scale is None:
            return f"step {step} waits for {self._slices - one.held} slices and tables that are not merged", []
        return f"step {step} is measured and waits to be committed", []

    def _measure(self, step: int) -> None:
        one = self._steps[step]
        is_whole = len(one.slots) == self._slots and one.held == self._slices and step == self._next
        if is_whole and one.loss_scale is None:
            one.loss_scale = self.loss_scale
            self.on_measured(step)
