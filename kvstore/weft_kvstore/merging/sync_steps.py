"""Steps that apply once every contributing slot has pushed or declared nothing. Pure.

Gradients are added in slot order: the longest complete prefix at once, later slots wait. The sum is g[a] + g[b] + ...
of the slots that pushed, from the left, so it is the same bits for any order of arrival. `Merge.ARRIVAL` adds in the
order of arrival instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from weft_kvstore.description.records import Merge
from weft_kvstore.merging.steps import Complete, G, PushRefusedError, check_contributes, contradiction, waits
from weft_kvstore.settings import STEPS_AHEAD


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
