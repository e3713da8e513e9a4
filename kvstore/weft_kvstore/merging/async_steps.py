"""Steps that apply as they arrive: each slot's one by one, in step order. Pure."""

from __future__ import annotations

from collections import deque
from typing import Generic

from weft_kvstore.merging.steps import Complete, G, PushRefusedError, check_contributes, contradiction, numbers, waits
from weft_kvstore.settings import STEPS_AHEAD


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
