"""A plain bucket on a shard: what is in of each step, merged and applied, over any run of slices at once. Pure.

Gradients are taken in at once (`accept`), and merged in the order of their priorities (`advance`), piece by piece. A
slice's value is at one version at any time: what is half made is shown to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import (
    Array,
    Range,
    Segment,
    greatest,
    least,
    ranges_alike,
    ranges_where,
    segment_as,
    segments_as_one,
)
from weft_kvstore.bucket.sets import BucketSets
from weft_kvstore.bucket.sums import BucketGate, BucketSums, Gradient, PendingSegments, WaitingGradients, sum_dtype
from weft_kvstore.bucket.update import BucketSpec, BucketUpdate, BucketValues
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import STEPS_AHEAD


def contradiction(*, before: bool) -> str:
    """In words: a slot has pushed and declares nothing, or the other way round."""
    was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
    return f"the slot {was} before and {now} now"


# --- Which steps of a bucket's slices are in and merged, by slot: numbers alone, over any run of slices at once -------


class BucketSteps:
    """`came[p]`: how many steps of contributing slot number p are in, by slice, and `through[p]` how many are merged.
    `version` counts those that are merged of every slot and applied.

    A slot's steps are taken in one after the other: what comes early waits with whoever asks. Invariant: `version` <=
    `through` <= `came`, except that where slots go on by themselves `version` is the least of `through`.

    `places` has the number of each slot that contributes. `pushed[p]`: whether the slot had gradients of the last step
    that is merged of it.
    """

    __slots__ = ("_together", "base", "came", "places", "pushed", "slots", "through", "version")

    def __init__(self, slots: tuple[int, ...], slices: int, *, together: bool) -> None:
        """`together`: no slot may be far ahead of the others, for a step applies once all are in."""
        self.slots = slots
        self.places = {slot: place for place, slot in enumerate(slots)}
        self._together = together
        self.came = np.zeros((len(slots), slices), np.int64)
        self.through = np.zeros((len(slots), slices), np.int64)
        self.pushed = np.zeros((len(slots), slices), np.bool_)
        self.version = np.zeros(slices, np.int64)
        self.base = np.zeros(slices, np.int64)
        """The version with which a slice began."""

    def place_of(self, slot: int, where: str) -> int:
        """The slot's number among those that contribute. Raises PushRefusedError."""
        if slot not in self.places:
            raise PushRefusedError(f"{where}: only slots {list(self.slots)} contribute to it")
        return self.places[slot]

    def take_next(self, place: int, step: int, first: int, stop: int) -> bool:
        """Takes in gradients of the next step of all of these slices, as nearly all are, where no slot is behind. False
        where they are any other: nothing has changed then."""
        if stop - first == 1:
            those = self.came[:, first].tolist()
            if those[place] != step or (self._together and step > min(those) + STEPS_AHEAD):
                return False
            self.came[place, first] = step + 1
            return True
        came = self.came[place, first:stop]
        if not (came == step).all() or (self._together and step > self.came[:, first:stop].min() + STEPS_AHEAD):
            return False
        came[:] = step + 1
        return True

    def check(self, place: int, step: int, first: int, stop: int, *, pushes: bool, where: Callable[[int], str]) -> None:
        """Raises PushRefusedError where gradients of a slot, or its word that it has none, are too far ahead, or
        contradict what is merged of a step that is not applied. `where` gives the words for a slice."""
        came = self.came[place, first:stop]
        if self._together and step < greatest(came):
            open_ = (self.version[first:stop] == step) & (self.through[place, first:stop] == step + 1)
            wrong = open_ & (self.pushed[place, first:stop] != pushes)
            if wrong.any():
                raise PushRefusedError(f"{where(first + int(wrong.argmax()))}: {contradiction(before=not pushes)}")
        those = self.came[:, first:stop] if self._together else came
        if step > least(those) + STEPS_AHEAD:
            at = first + int((those.min(axis=0) if self._together else came).argmin())
            behind = int(self.came[:, at].min()) if self._together else int(came.min())
            missing = [slot for slot, there in zip(self.slots, self.came[:, at], strict=True) if there <= behind]
            of = missing if self._together else [self.slots[place]]
            raise PushRefusedError(
                f"{where(at)}: more than {STEPS_AHEAD} steps ahead of step {behind}, which waits for slots {of}"
            )

    def accept(self, place: int, step: int, first: int, stop: int) -> tuple[list[Range], list[Range]]:
        """Takes in what `check` lets pass: the ranges that are new, and those that come too early to be taken in."""
        came = self.came[place, first:stop]
        taken, early = ranges_where(came == step, first), ranges_where(came < step, first)
        for low, high in taken:
            self.came[place, low:high] = step + 1
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

    def missing_in(self, slice_: int, step: int) -> list[int]:
        """The slots that are not in with a step of a slice."""
        return [slot for slot, came in zip(self.slots, self.came[:, slice_].tolist(), strict=True) if came <= step]

    def missing(self, slice_: int, version: int, of: Sequence[int] | None) -> tuple[str, list[int]]:
        """What a pull of a version waits for at a slice, in words, and the slots that are missing; `of`: the numbers of
        the slots whose own steps count, None for all of them together."""
        if of is None:
            at = int(self.version[slice_])
            missing = self.missing_in(slice_, at)
            return f"has seen {at} steps; {_waits_for(at, missing)}", missing
        behind = {self.slots[p]: int(self.came[p, slice_]) for p in of if self.through[p, slice_] < version}
        first = min(behind.values(), default=version)
        missing = [slot for slot, step in behind.items() if step == first and step < version]
        return (
            f"has seen {first} steps of slots {_listed([self.slots[p] for p in of])}; {_waits_for(first, missing)}",
            missing,
        )


def _waits_for(step: int, missing: list[int]) -> str:
    return f"step {step} waits for slots {_listed(missing) or 'none: it is being merged'}"


def _listed(slots: list[int]) -> str:
    return ", ".join(map(str, slots))


# --- A bucket's way through its steps ---------------------------------------------------------------------------------


MOST_RESTORED: Final = 1 << 60
"""Steps that a store may begin with: what is counted from there stays within 64 bits."""


class BucketState:
    """Invariants: a slice's sum is of its next step; `_merged` counts the slots in it. `_waiting` has what came and is
    not merged: of a slot's steps that are in, and of at most STEPS_AHEAD steps that came before the one before them."""

    def __init__(self, spec: BucketSpec, values: Array, given: Array, *, shared: bool = False) -> None:
        """`values` are the first values (elements); where a slice is `given` (slices) bool they are set later.
        `shared`: clients may read `values` where they are."""
        count = self.count = len(spec.part)
        bounds = spec.part.bounds // values.dtype.itemsize
        self.spec = spec
        self.bounds = bounds
        self.steps = BucketSteps(spec.slots, count, together=spec.together)
        self.update = BucketUpdate(spec, BucketValues(values, bounds, in_one=spec.is_whole, shared=shared))
        self.sets = BucketSets(spec, self.steps.version, self.update.values, given)
        self.applied: Callable[[int, int, int, int], None] | None = None
        """Told (slot, step, first, stop) of each slot's gradients when they are merged, where somebody asks."""
        self.reached: Callable[[int, int, int], None] | None = None
        """Told (version, first, stop) of slices that have come to a version together, where somebody asks."""
        self._sums = BucketSums(count, bounds)
        self._sum_dtype = sum_dtype(values.dtype)
        """In which gradients are added whose mean is wanted."""
        # Where each slot goes on by itself, only its own steps have an order.
        self._waiting = WaitingGradients(bounds, by_slot=spec.merge is Merge.SLOT or not spec.together)
        self._merged = np.zeros(count, np.int64)
        self._gate = None
        is_summed = spec.update is not Update.MEAN
        self._is_plain = is_summed and spec.gate is None and not spec.is_whole
        """Whether nothing but its rule stands between a step's last gradients and its update."""
        if spec.gate is not None:
            self._gate = BucketGate(spec.gate, self._sums, bounds, is_summed=is_summed, unscaled=spec.unscaled)

    def __len__(self) -> int:
        """How many slices."""
        return self.count

    @property
    def nbytes(self) -> int:
        """Of the values."""
        return int(self.spec.part.bounds[-1])

    def push(self, slot: int, step: int, segment: Segment) -> list[Range]:
        """Takes in a slot's gradients: see `check` and `accept`."""
        place, first, stop = self.steps.places.get(slot), segment.first, segment.stop
        # What waits of the step behind it would be due with it.
        alone = place is not None and (place, step + 1) not in self._waiting.segments
        if place is not None and alone and self.steps.take_next(place, step, first, stop):
            self._waiting.put(place, step, segment)
            return [(first, stop)]
        self.check(slot, step, first, stop, pushes=True)
        return self.accept(slot, step, segment)

    def check(self, slot: int, step: int, first: int, stop: int, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradients, or its word that it has none, contradict what is there."""
        place = self.steps.place_of(slot, self._where(slot, step, first))
        self.steps.check(place, step, first, stop, pushes=pushes, where=lambda slice_: self._where(slot, step, slice_))
        waiting = self._waiting.segments.get((place, step))
        for segment in waiting.within(first, stop) if waiting is not None else ():
            if (segment.elements is not None) != pushes:
                where = self._where(slot, step, max(segment.first, first))
                raise PushRefusedError(f"{where}: {contradiction(before=not pushes)}")

    def accept(self, slot: int, step: int, segment: Segment) -> list[Range]:
        """Takes in what `check` lets pass: gradients, which are written later, or that there are none. The slices whose
        merge may go on; what was in before changes nothing: exactly once holds."""
        place = self.steps.places[slot]
        taken, early = self.steps.accept(place, step, segment.first, segment.stop)
        cut = PendingSegments(self.bounds)
        for first, stop in early:
            if (before := self._waiting.segments.get((place, step))) is not None:
                before.take(first, stop)  # What was sent again takes the place of what came first: it is the same.
            self._waiting.put(place, step, cut.part(segment, first, stop))
        for first, stop in taken:
            self._waiting.put(place, step, cut.part(segment, first, stop))
        due = taken
        while due and (pending := self._waiting.segments.get((place, step := step + 1))) is not None:
            come = [(max(one.first, a), min(one.stop, b)) for a, b in due for one in pending.within(a, b)]
            due = [one for a, b in come for one in self.steps.accept(place, step, a, b)[0]]
        return taken

    def restore(self, slot: int, version: int, number: int, segment: Segment, origin: Hashable) -> list[Range]:
        """Of slices that nobody has pushed: their value at a version with number 0, else state array `number` of the
        rule. The ranges that pulls may have waited for. Raises PushRefusedError."""
        pending, changed = PendingSegments(self.bounds), []
        where = self._where(slot, version, segment.first)
        if self.spec.gate is not None:
            raise PushRefusedError(f"{where}: steps are committed, and begin at 0")
        if version >= MOST_RESTORED:
            raise PushRefusedError(f"{where}: a store is restored at a step below 2^60")
        new = self.sets.new(segment.first, segment.stop, origin)
        for low, high in new:
            if not self.steps.untouched(low, high):
                told = "it cannot be restored: a step of it has begun; restore before anybody pushes"
                raise PushRefusedError(f"{self._where(slot, version, low)}: {told}")
            if number > len(self.spec.state):
                told = f"the rule has {len(self.spec.state)} state arrays, not {number}"
                raise PushRefusedError(f"{self._where(slot, version, low)}: {told}")
        for low, high in new:
            part = pending.part(segment, low, high)
            self.sets.restore(part, origin, is_value=not number)
            if number:
                self.update.restore(self.spec.state[number - 1], part)
                continue
            self.steps.begin_at(version, low, high)
            self.update.updates[low:high] = version
            changed.append((low, high))
        return changed

    def begin_at(
        self,
        version: int,
        value: Segment,
        state: Mapping[str, Segment],
        updates: Array,
        owed: Array | None = None,
    ) -> None:
        """Has slices that nobody has pushed begin at a version: with a value, the rule's arrays by name, the number of
        updates made of each slice (slices) int64, and what compression owes to all workers (elements)."""
        if owed is not None:
            self.update.residual(value.first, value.stop)[...] = owed
        self.sets.restore(value, None, is_value=True)
        for name, segment in state.items():
            self.update.restore(name, segment)
        self.update.updates[value.first : value.stop] = updates
        if self.spec.slots:
            self.steps.begin_at(version, value.first, value.stop)

    def advance(self, todo: list[Range]) -> Range | None:
        """The next piece of work on the slices `todo`, from which it takes what it has done: the slices that it has
        changed, or None where nothing more can be done. Raises RuleFailedError, MemoryError."""
        if not self.spec.together:
            return self._advance_alone(todo)
        slots, waiting = len(self.spec.slots), self._waiting
        while todo:
            low, high = todo.pop()
            end, merged, version = self._alike(low, high)
            if end < high:
                todo.append((end, high))
            if merged < slots:
                found = waiting.take(version, merged, low, end) if waiting.segments else ()
                if merged + 1 == slots and len(found) == 1 and self._closes(version, found[0][1]):
                    ((place, segment),) = found  # As nearly all steps end: it crosses memory once, and waits nowhere.
                    first, stop = segment.first, segment.stop
                    self._is_merged(place, version, segment, first if stop - first == 1 else slice(first, stop))
                    self._complete(version, first, stop, segment)
                    if waiting.segments and waiting.holds(version + 1):
                        todo.append((first, stop))
                    return first, stop
                for place, segment in found:
                    self._add(place, version, segment)
                if found:
                    todo.append((low, end))
                continue
            piece = self._first_piece(low, end)
            if piece is None or (self.spec.is_whole and self._alike(*piece) != (self.count, merged, version)):
                continue  # All slices of a whole key wait for each other.
            if piece[1] < end:
                todo.append((piece[1], end))
            if not self._is_held(version) and (self._gate is None or self._gate.passes(version, *piece)):
                self._complete(version, *piece)
                if waiting.holds(version + 1):
                    todo.append(piece)
                return piece
        return None

    def _advance_alone(self, todo: list[Range]) -> Range | None:
        """Of slots whose gradients are updates of their own, of each slice one step after the other: see `advance`.
        Work may be done in any order."""
        waiting = self._waiting
        while todo and waiting.segments:
            piece = self._first_piece(*todo[-1])
            if piece is None:
                todo.pop()
                continue
            for place in range(len(self.spec.slots)):
                for low, high, step in ranges_alike(self.steps.through[place, piece[0] : piece[1]], piece[0]):
                    pending = waiting.segments.get((place, step))
                    if pending is None or self._is_held(step) or (self.spec.is_whole and len(pending) < self.count):
                        continue
                    found = [segment for _, segment in waiting.take(step, place, low, high)]
                    if self.spec.is_whole:
                        found = [segments_as_one(found)]
                    for segment in found:  # All before who waits is told: what was taken out is nowhere else.
                        self._apply_alone(place, step, segment)
                    if found:
                        return found[0].first, found[-1].stop
            _, high = todo.pop()
            if piece[1] < high:
                todo.append((piece[1], high))
        todo.clear()
        return None

    def _is_held(self, step: int) -> bool:
        """Whether a change of hyper-parameters holds a step."""
        hold = self.spec.hold
        return hold is not None and hold.held is not None and step >= hold.held.step

    def begun(self, first: int, stop: int) -> tuple[int, str]:
        """Of some slices: see `Changed`. What has come early counts wherever it belongs."""
        came = self.steps.came[:, first:stop].max(axis=0)
        at = first + int(came.argmax())
        step = max([int(came.max()), *(step + 1 for _, step in self._waiting.segments)])
        return step, f"step {step - 1} of {self.spec.key_named(at)} has begun"

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten."""
        place = self.steps.places.get(slot)
        if place is None:
            return
        self._waiting.forget(place)
        self.steps.forget(place)

    def _where(self, slot: int, step: int, slice_: int) -> str:
        return f"slot {slot}, {self.spec.named(slice_)}, step {step}"

    def _alike(self, first: int, stop: int) -> tuple[int, int, int]:
        """How far slices are alike from the first on, how many slots are merged in their next step, and which it is."""
        versions = self.steps.version
        merged, version = int(self._merged[first]), int(versions[first])
        if stop - first == 1:
            return stop, merged, version
        other = (self._merged[first:stop] != merged) | (versions[first:stop] != version)
        return (first + int(other.argmax()) if other.any() else stop), merged, version

    def _first_piece(self, first: int, stop: int) -> Range | None:
        """The first slices of these that can be updated in one go: none of them lacks a value. Of a whole key these
        are all its slices."""
        if self.spec.is_whole:
            return None if self.sets.lacks(0, len(self)) else (0, len(self))
        low, high = first, stop
        if not self.sets.complete:
            ranges = self.sets.whole(first, stop)
            if not ranges:
                return None
            low, high = ranges[0]
        if high - low == 1:
            return low, high
        most = int(np.searchsorted(self.bounds, self.bounds[low] + self.spec.a_piece, side="right")) - 1
        return low, min(max(most, low + 1), low + self.spec.slices_a_piece, high)

    def _add(self, place: int, step: int, segment: Segment) -> None:
        """Adds a slot's gradients to sums of equally many slots."""
        first, stop = segment.first, segment.stop
        at = first if stop - first == 1 else slice(first, stop)
        is_last = int(self._merged[first]) + 1 == len(self.spec.slots)
        is_mean = self.spec.update is Update.MEAN
        self._sums.add(segment_as(segment, self._sum_dtype) if is_mean else segment, last=is_last)
        self._merged[at] += 1
        self._is_merged(place, step, segment, at)

    def _is_merged(self, place: int, step: int, segment: Segment, at: int | slice) -> None:
        pushes = segment.elements is not None
        self.steps.through[place, at] = step + 1
        self.steps.pushed[place, at] = pushes
        if self.applied is not None and pushes:
            self.applied(self.spec.slots[place], step, segment.first, segment.stop)

    def _closes(self, step: int, last: Segment) -> bool:
        """Whether the last gradients of a step let all of their slices be updated in one piece."""
        first, stop = last.first, last.stop
        if last.elements is None or not self._is_plain or not self.sets.complete or self._is_held(step):
            return False
        if stop - first == 1:
            return True
        count = self._sums.contributors[first:stop]
        return self._first_piece(first, stop) == (first, stop) and bool((count == count[0]).all())

    def _complete(self, step: int, first: int, stop: int, last: Segment | None = None) -> None:
        """Applies a step, of which the `last` gradients may be in no sum."""
        if last is not None:
            self.update.with_gradient(self._sums.take(first, stop, last), 1, step)
        else:
            for low, high, count in ranges_alike(self._sums.contributors[first:stop].copy(), first):
                if count:
                    self.update.with_gradient(self._sums.take(low, high), count, step)
                else:
                    self.update.without_gradient(low, high, step)
        at = first if stop - first == 1 else slice(first, stop)
        self._merged[at] = 0
        self.steps.version[at] = step + 1
        if self.sets.ahead:
            self.sets.reached(step + 1, first, stop)
        if self.reached is not None:
            self.reached(step + 1, first, stop)

    def _apply_alone(self, place: int, step: int, segment: Segment) -> None:
        first, stop = segment.first, segment.stop
        if segment.elements is not None:
            self.update.with_gradient(Gradient(self.bounds, first, stop, (segment,)), 1, step)
        at = first if stop - first == 1 else slice(first, stop)
        self._is_merged(place, step, segment, at)
        self.steps.version[at] = self.steps.through[:, at].min(axis=0)
