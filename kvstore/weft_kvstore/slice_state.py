"""One slice on a shard: its value, the rule's state, and the gradients of the steps that are not applied yet. Pure.

A step applies when every contributing slot has pushed or declared nothing. Gradients are added in slot order: the
longest complete prefix at once, later slots wait. The sum is g[a] + g[b] + ... of the slots that pushed, from the left,
so it is the same bits for any order of arrival. `Merge.ARRIVAL` adds in the order of arrival instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kernels.rule import Hyper, Rule, State
from weft_kvstore.buffers import bytes_of
from weft_kvstore.description import Merge
from weft_kvstore.store import Array

STEPS_AHEAD: Final = 2
"""How far beyond the first step that is not applied a slot may push; bounds what waits past a gap."""


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What all slices of a key on a shard have in common. `place` is the key's place in the description."""

    key: str
    place: int
    priority: int
    dtype: np.dtype[Any]
    slots: tuple[int, ...]
    update: Update
    merge: Merge
    rule: Rule
    hyper: Hyper


class Held:
    """An array whose bytes may be on their way to a peer: `lent` counts how often. It is not written while lent."""

    __slots__ = ("array", "base", "lent", "start")

    def __init__(self, array: Array, base: memoryview, start: int) -> None:
        self.array = array
        self.base = base
        self.start = start
        self.lent = 0

    @property
    def stop(self) -> int:
        return self.start + self.array.nbytes


class PushRefusedError(Exception):
    """A push or a declaration that contradicts what is there; the text names slot, key, slice and step."""


@dataclass(slots=True)
class _OpenStep:
    """A step that is not applied. `settled[slot]` says whether the slot pushed (True) or declared nothing (False);
    `waiting` has what is not merged, in order of arrival; the sum is of `contributors` gradients."""

    settled: dict[int, bool] = field(default_factory=dict)
    waiting: dict[int, Array | None] = field(default_factory=dict)
    merged: int = 0
    contributors: int = 0
    total: Array | None = None

    def merge(self, slots: tuple[int, ...], merge: Merge) -> bool:
        """Adds what can be added. True when every slot is in."""
        order = slots[self.merged :] if merge is Merge.SLOT else tuple(self.waiting)
        for slot in order:
            if slot not in self.waiting:
                break
            gradient = self.waiting.pop(slot)
            self.merged += 1
            if gradient is None:
                continue
            self.contributors += 1
            if self.total is None:
                self.total = gradient
            else:
                np.add(self.total, gradient, out=self.total)
        return self.merged == len(slots)


class SliceState:
    """A slice. `version` counts the steps it has seen, `updates` those that changed it.

    Invariants: `_steps` holds only steps from `version` on; a slot that is merged or waits in a step is settled in it.
    """

    __slots__ = ("_state_arrays", "_steps", "index", "queued", "spec", "state", "updates", "version", "waits", "weight")

    def __init__(self, spec: KeySpec, index: int, weight: Held, state: Mapping[str, Held]) -> None:
        self.spec = spec
        self.index = index
        self.weight = weight
        self.state = dict(state)
        self._state_arrays: State = {name: held.array for name, held in state.items()}
        self.version = 0
        self.updates = 0
        self.queued = False
        self.waits: list[Any] = []
        self._steps: dict[int, _OpenStep] = {}

    @property
    def nbytes(self) -> int:
        return self.weight.array.nbytes

    def is_at(self, version: int) -> bool:
        """Whether a pull of `version` can be answered. A key to which nobody contributes is at every version."""
        return self.version >= version or not self.spec.slots

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""
        if slot not in self.spec.slots:
            raise PushRefusedError(f"{self._where(slot, step)}: only slots {list(self.spec.slots)} contribute to it")
        if step < self.version:
            return
        open_step = self._steps.get(step)
        before = open_step.settled.get(slot) if open_step is not None else None
        if before is not None and before != pushes:
            was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
            raise PushRefusedError(f"{self._where(slot, step)}: the slot {was} before and {now} now")
        if step > self.version + STEPS_AHEAD and step > (first := self._first_incomplete()) + STEPS_AHEAD:
            raise PushRefusedError(
                f"{self._where(slot, step)}: more than {STEPS_AHEAD} steps ahead of step {first}, "
                f"which waits for slots {self._missing_in(first)}"
            )

    def accept(self, slot: int, step: int, gradient: Array | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing.

        The array is taken over: it is written later. True if `merge` may now have something to do. What was in before
        changes nothing: exactly once holds.
        """
        if step < self.version:
            return False
        open_step = self._steps.setdefault(step, _OpenStep())
        if slot in open_step.settled:
            return False
        open_step.settled[slot] = gradient is not None
        open_step.waiting[slot] = gradient
        return step == self.version

    def merge(self) -> bool:
        """Merges all that can be merged. True if the version has moved."""
        before = self.version
        while (open_step := self._steps.get(self.version)) is not None:
            if not open_step.merge(self.spec.slots, self.spec.merge):
                break
            del self._steps[self.version]
            if open_step.total is not None:
                self._apply(open_step.total, open_step.contributors)
            self.version += 1
        return self.version > before

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten."""
        for open_step in self._steps.values():
            if slot in open_step.waiting:
                del open_step.waiting[slot]
                del open_step.settled[slot]

    def missing(self) -> list[int]:
        """The slots that the next step still waits for."""
        return self._missing_in(self.version)

    def _missing_in(self, step: int) -> list[int]:
        open_step = self._steps.get(step)
        settled = open_step.settled if open_step is not None else {}
        return [slot for slot in self.spec.slots if slot not in settled]

    def _first_incomplete(self) -> int:
        """The first step that some slot is not in; steps before it may wait to be merged."""
        step = self.version
        while step in self._steps and not self._missing_in(step):
            step += 1
        return step

    def _apply(self, total: Array, contributors: int) -> None:
        self.weight = _writable(self.weight)
        weight = self.weight.array
        if self.spec.update is Update.RULE:
            self.spec.rule.apply(weight, total, self._writable_state(), self.updates + 1, self.spec.hyper)
        elif total.dtype.kind == "f":
            np.divide(total, contributors, out=weight)
        else:
            np.floor_divide(total, contributors, out=weight)
        self.updates += 1

    def _writable_state(self) -> State:
        """The state's arrays, to be written."""
        if any(held.lent for held in self.state.values()):
            self.state = {name: _writable(held) for name, held in self.state.items()}
            self._state_arrays = {name: held.array for name, held in self.state.items()}
        return self._state_arrays

    def _where(self, slot: int, step: int) -> str:
        return f"slot {slot}, key {self.spec.key!r}, slice {self.index}, step {step}"


def _writable(held: Held) -> Held:
    """The array, to be written. While its bytes are on their way to somebody, a copy takes its place."""
    if not held.lent:
        return held
    array = held.array.copy()
    return Held(array, bytes_of(array), 0)
