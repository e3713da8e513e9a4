"""One slice on a shard: its value, the rule's state, and the gradients of the steps that are not applied yet. Pure.

A step applies when every contributing slot has pushed or declared nothing. Gradients are added in slot order: the
longest complete prefix at once, later slots wait. The sum is g[a] + g[b] + ... of the slots that pushed, from the left,
so it is the same bits for any order of arrival. `Merge.ARRIVAL` adds in the order of arrival instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from weft_kernels.rule import Hyper, Rule, State
from weft_kvstore.buffers import bytes_of
from weft_kvstore.description import Merge, Update
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

    __slots__ = ("_steps", "index", "queued", "spec", "state", "updates", "version", "waits", "weight")

    def __init__(self, spec: KeySpec, index: int, weight: Held, state: State) -> None:
        self.spec = spec
        self.index = index
        self.weight = weight
        self.state = state
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

    def accept(self, slot: int, step: int, gradient: Array | None) -> bool:
        """Takes in a slot's gradient, or None for nothing; True if `merge` may now have something to do.

        The array is taken over: it is written later. False: this was in before, exactly once holds.
        Raises PushRefusedError.
        """
        if slot not in self.spec.slots:
            raise PushRefusedError(f"{self._where(slot, step)}: only slots {list(self.spec.slots)} contribute to it")
        if step < self.version:
            return False
        if step > self.version + STEPS_AHEAD:
            self.merge()  # What is complete may not have been worked off yet.
        if step > self.version + STEPS_AHEAD:
            raise PushRefusedError(
                f"{self._where(slot, step)}: more than {STEPS_AHEAD} steps ahead of step {self.version}, "
                f"which waits for slots {self.missing()}"
            )
        open_step = self._steps.setdefault(step, _OpenStep())
        pushed = gradient is not None
        before = open_step.settled.get(slot)
        if before is not None:
            if before != pushed:
                was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
                raise PushRefusedError(f"{self._where(slot, step)}: the slot {was} before and {now} now")
            return False
        open_step.settled[slot] = pushed
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
        open_step = self._steps.get(self.version)
        settled = open_step.settled if open_step is not None else {}
        return [slot for slot in self.spec.slots if slot not in settled]

    def _apply(self, total: Array, contributors: int) -> None:
        weight = self._writable()
        if self.spec.update is Update.RULE:
            self.spec.rule.apply(weight, total, self.state, self.updates + 1, self.spec.hyper)
        elif total.dtype.kind == "f":
            np.divide(total, contributors, out=weight)
        else:
            np.floor_divide(total, contributors, out=weight)
        self.updates += 1

    def _writable(self) -> Array:
        """The weight, to be written. While its bytes are on their way to somebody, a copy takes its place."""
        if self.weight.lent:
            array = self.weight.array.copy()
            self.weight = Held(array, bytes_of(array), 0)
        return self.weight.array

    def _where(self, slot: int, step: int) -> str:
        return f"slot {slot}, key {self.spec.key!r}, slice {self.index}, step {step}"
