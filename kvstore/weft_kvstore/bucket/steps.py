"""Which steps are in and applied, by slot and slice, and what was pushed and is not applied. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from weft_kvstore.arrays import FEW, Array, Range, Segment, ranges_where
from weft_kvstore.bucket.sums import PendingSegments
from weft_kvstore.bucket.update import UpdateSpec
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import STEPS_AHEAD

# --- Which steps are in: numbers alone, over any run of slices at once ------------------------------------------------


def contradiction(*, before: bool) -> str:
    """In words: a slot has pushed and declares nothing, or the other way round."""
    was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
    return f"the slot {was} before and {now} now"


class BucketSteps:
    """`arrived[i]`: how many steps have arrived from contributing slot number i, by slice, and `through[i]` how many of
    them are added up. `version` counts those that are added up of every slot and applied.

    A slot's steps are taken in one after the other: what comes early waits with whoever asks. Invariant: `version` <=
    `through` <= `arrived`, except that where slots go on by themselves `version` is the least of `through`.

    `indices` has the number of each slot that contributes. `pushed[i]`: whether the slot had gradients of the last step
    that is added up of it and not applied.
    """

    __slots__ = ("_is_sync", "arrived", "base", "indices", "pushed", "slots", "through", "version")

    def __init__(self, slots: tuple[int, ...], slices: int, *, is_sync: bool) -> None:
        """`is_sync`: no slot may be far ahead of the others, for a step applies once all are in."""
        self.slots = slots
        self.indices = {slot: index for index, slot in enumerate(slots)}
        self._is_sync = is_sync
        self.arrived = np.zeros((len(slots), slices), np.int64)
        self.through = np.zeros((len(slots), slices), np.int64)
        self.pushed = np.zeros((len(slots), slices), np.bool_)
        self.version = np.zeros(slices, np.int64)
        self.base = np.zeros(slices, np.int64)
        """The version with which a slice began."""

    def index_of(self, slot: int, where: str) -> int:
        """The slot's number among those that contribute. Raises PushRefusedError."""
        if slot not in self.indices:
            raise PushRefusedError(f"{where}: only slots {list(self.slots)} contribute to it")
        return self.indices[slot]

    def check(self, index: int, step: int, first: int, stop: int, *, pushes: bool, where: Callable[[int], str]) -> None:
        """Raises PushRefusedError where gradients of a slot, or its word that it has none, are too far ahead, or
        contradict what is merged of a step that is not applied. `where` gives the words for a slice."""
        arrived = self.arrived[index, first:stop]
        if self._is_sync and step < arrived.max():
            open_ = (self.version[first:stop] == step) & (self.through[index, first:stop] == step + 1)
            wrong = open_ & (self.pushed[index, first:stop] != pushes)
            if wrong.any():
                raise PushRefusedError(f"{where(first + int(wrong.argmax()))}: {contradiction(before=not pushes)}")
        those = self.arrived[:, first:stop] if self._is_sync else arrived
        if step > those.min() + STEPS_AHEAD:
            at = first + int((those.min(axis=0) if self._is_sync else arrived).argmin())
            behind = int(self.arrived[:, at].min()) if self._is_sync else int(arrived.min())
            missing = [slot for slot, there in zip(self.slots, self.arrived[:, at], strict=True) if there <= behind]
            of = missing if self._is_sync else [self.slots[index]]
            raise PushRefusedError(
                f"{where(at)}: more than {STEPS_AHEAD} steps ahead of step {behind}, which waits for slots {of}"
            )

    def accept(self, index: int, step: int, first: int, stop: int) -> tuple[list[Range], list[Range]]:
        """Takes in what `check` lets pass: the ranges that are new, and those that come too early to be taken in."""
        arrived = self.arrived[index, first:stop]
        taken, early = ranges_where(arrived == step, first), ranges_where(arrived < step, first)
        for low, high in taken:
            self.arrived[index, low:high] = step + 1
        return taken, early

    def begin_at(self, version: int, first: int, stop: int) -> None:
        """Untouched slices begin at a version."""
        for counts in (self.arrived, self.through, self.version, self.base):
            counts[..., first:stop] = version

    def forget(self, index: int) -> None:
        """What of a slot is not merged never came."""
        self.arrived[index] = self.through[index]

    def missing_in(self, slice_: int, step: int) -> list[int]:
        """The slots that are not in with a step of a slice."""
        return [
            slot for slot, arrived in zip(self.slots, self.arrived[:, slice_].tolist(), strict=True) if arrived <= step
        ]

    def missing(self, slice_: int, version: int, of: Sequence[int] | None) -> tuple[str, list[int]]:
        """What a pull of a version waits for at a slice, in words, and the slots that are missing; `of`: the numbers of
        the slots whose own steps count, None for all of them together."""
        if of is None:
            at = int(self.version[slice_])
            missing = self.missing_in(slice_, at)
            return f"has seen {at} steps; {_waits_for(at, missing)}", missing
        behind = {self.slots[p]: int(self.arrived[p, slice_]) for p in of if self.through[p, slice_] < version}
        first = min(behind.values(), default=version)
        missing = [slot for slot, step in behind.items() if step == first and step < version]
        slots = missing or [self.slots[p] for p in of]
        return f"has seen {first} steps of slots {listed(slots)}; {_waits_for(first, missing)}", missing


def _waits_for(step: int, missing: list[int]) -> str:
    return f"step {step} waits for slots {listed(missing)}" if missing else f"step {step} is being merged"


def listed(slots: list[int]) -> str:
    return ", ".join(map(str, slots))


# --- Gradients of steps that are not applied: of a bucket's slices, or of a table, which is one slice -----------------


MOST_RESTORED: Final = 1 << 60
"""Steps that a store may begin with: what is counted from there stays within 64 bits."""


class PendingSteps:
    """`_waiting` has, by the number of a slot and step, the gradients that came and are not applied, or that the slot
    has none: of steps that are in (`BucketSteps.arrived`), and of at most STEPS_AHEAD steps that came before the one
    before them."""

    def __init__(self, spec: UpdateSpec, bounds: Array) -> None:
        """Slice i has the elements from `bounds[i]` to before `bounds[i + 1]`."""
        self.spec = spec
        self.bounds = bounds
        self.count = len(bounds) - 1
        """How many slices."""
        self.steps = BucketSteps(spec.slots, self.count, is_sync=spec.is_sync)
        self.applied: Callable[[int, int, int, int], None] | None = None
        """Called with (slot, step, first, stop) of each slot's gradients when they are added, where somebody asks."""
        self.reached: Callable[[int, int, int], None] | None = None
        """Called with (version, first, stop) of slices that have come to a version together, where somebody asks."""
        self._waiting: dict[tuple[int, int], PendingSegments] = {}
        self._adds_early = False

    @property
    def has_waiting(self) -> bool:
        """Whether anything has come that is neither applied nor in a sum."""
        return bool(self._waiting)

    def push(self, slot: int, step: int, segments: Sequence[Segment]) -> list[Range]:
        """Stores a slot's gradients of adjacent slices, as `check` and `accept` do; most come as the next step of their
        slices. Returns the slices that may have a step complete."""
        steps, first, stop = self.steps, segments[0].first, segments[-1].stop
        index, is_sync = steps.indices.get(slot), self.spec.is_sync
        if index is not None and (index, step + 1) not in self._waiting:  # Else that step would be due with this one.
            arrived = steps.arrived[:, first:stop]
            least, greatest = extremes(arrived)
            is_next = least[index] == greatest[index] == step
            if is_next and (not is_sync or step <= min(least) + STEPS_AHEAD):  # As nearly all are.
                arrived[index] = step + 1
                pending = self._waiting.get((index, step))
                if pending is None:
                    self._waiting[index, step] = PendingSegments(self.bounds, segments)
                else:
                    pending.put(*segments)
                if self._adds_early:
                    self._add_early(index, step, first, stop)
                greatest[index] += 1
                return [(first, stop)] if not is_sync or min(greatest) > step else []
        self.check(slot, step, first, stop, pushes=True)
        taken = [one for segment in segments for one in self.accept(slot, step, segment)]
        for first, stop in taken if self._adds_early else ():
            self._add_early(steps.indices[slot], step, first, stop)
        return taken

    def check(self, slot: int, step: int, first: int, stop: int, *, pushes: bool) -> None:
        """Raises PushRefusedError if a slot's gradients, or its declaration that it has none, contradict what it sent
        before, or are too many steps ahead."""
        index = self.steps.index_of(slot, self._where(slot, step, first))
        self.steps.check(index, step, first, stop, pushes=pushes, where=lambda slice_: self._where(slot, step, slice_))
        waiting = self._waiting.get((index, step))
        for segment in waiting.within(first, stop) if waiting is not None else ():
            if (segment.elements is not None) != pushes:
                where = self._where(slot, step, max(segment.first, first))
                raise PushRefusedError(f"{where}: {contradiction(before=not pushes)}")

    def accept(self, slot: int, step: int, segment: Segment) -> list[Range]:
        """Stores what `check` has let pass: gradients, whose memory is the bucket's from then on, or that there are
        none. Returns the slices that may have a step complete. What has arrived before changes nothing, so that each
        push counts once."""
        index = self.steps.indices[slot]
        taken, early = self.steps.accept(index, step, segment.first, segment.stop)
        if taken or early:
            pending = self._waiting.setdefault((index, step), PendingSegments(self.bounds))
            for first, stop in (*taken, *early):
                pending.take(first, stop)  # What comes early again takes the place of what came first: it is the same.
                pending.put(pending.part(segment, first, stop))
        due = taken
        while due and (waiting := self._waiting.get((index, step := step + 1))) is not None:
            come = [(max(one.first, a), min(one.stop, b)) for a, b in due for one in waiting.within(a, b)]
            due = [one for a, b in come for one in self.steps.accept(index, step, a, b)[0]]
        return taken

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not added is forgotten."""
        index = self.steps.indices.get(slot)
        if index is not None:
            for of, step in [key for key in self._waiting if key[0] == index]:
                pending = self._waiting[of, step]
                pending.segments = [one for one in pending.segments if self.steps.through[index, one.first] > step]
                if not pending.segments:
                    del self._waiting[of, step]
            self.steps.forget(index)

    def check_restored(self, slot: int, version: int, first: int, stop: int) -> None:
        """Raises PushRefusedError where slices cannot be brought back at a version."""
        detail = ""
        if self.spec.gate is not None:
            detail = "a store with commit cannot be restored: its steps begin at 0"
        elif version >= MOST_RESTORED:
            detail = "a store is restored at a step below 2^60"
        elif not self.is_untouched(first, stop):
            detail = "it cannot be restored: a step of it has begun; restore before anybody pushes"
        if detail:
            raise PushRefusedError(f"{self._where(slot, version, first)}: {detail}")

    def is_untouched(self, first: int, stop: int) -> bool:
        """Whether nobody has said anything of any step of these slices."""
        waiting = [one for one in self._waiting.values() if one.within(first, stop)]
        return not waiting and bool((self.steps.arrived[:, first:stop] == self.steps.base[first:stop]).all())

    def _add_early(self, index: int, step: int, first: int, stop: int) -> None:
        """Where it `_adds_early`: some slices of a slot's gradients have come."""

    def _order(self, step: int) -> Sequence[int]:
        """The slots, by their numbers, in the order in which their gradients of a step are added."""
        if self.spec.merge is Merge.ARRIVAL:
            return [index for index, of in self._waiting if of == step]
        return range(len(self.spec.slots))

    def _is_added(self, index: int, step: int, segments: Sequence[Segment]) -> None:
        for first, stop, elements in segments:
            self.steps.pushed[index, first:stop] = elements is not None
            if self.applied is not None and elements is not None:
                self.applied(self.spec.slots[index], step, first, stop)

    def _where(self, slot: int, step: int, slice_: int) -> str:
        return f"slot {slot}, {self.spec.named(slice_)}, step {step}"


def extremes(numbers: Array) -> tuple[list[int], list[int]]:
    """The least and the greatest of each row of int64 numbers (rows, n)."""
    if numbers.size <= FEW:
        rows = numbers.tolist()
        return [*map(min, rows)], [*map(max, rows)]
    return np.minimum.reduce(numbers, axis=1).tolist(), np.maximum.reduce(numbers, axis=1).tolist()
