"""A plain bucket on a shard: what is in of each step, merged and applied, over any run of slices at once. Pure.

Gradients are taken in at once (`accept`), and merged in the order of their priorities (`advance`), piece by piece. A
slice's value is at one version at any time: what is half made is shown to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import (
    Array,
    PendingSegments,
    Range,
    Segment,
    greatest,
    least,
    ranges_alike,
    ranges_where,
    segment_as,
)
from weft_kvstore.bucket.sets import BucketSets
from weft_kvstore.bucket.sums import (
    ArrivalOrder,
    BucketGate,
    BucketSums,
    MergeOrder,
    SlotOrder,
    Sum,
    Total,
    sum_dtype,
)
from weft_kvstore.bucket.update import BucketSpec, BucketUpdate, BucketValues
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import STEPS_AHEAD


def contradiction(*, before: bool) -> str:
    """In words: a slot has pushed and declares nothing, or the other way round."""
    was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
    return f"the slot {was} before and {now} now"


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
            raise PushRefusedError(f"{where}: only slots {list(self.slots)} contribute to it")
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
            return f"has seen {at} steps; {_waits_for(at, missing)}", missing
        behind = {self.slots[p]: int(self.came[p, slice_]) for p in of if self.through[p, slice_] < version}
        first = min(behind.values(), default=version)
        missing = [slot for slot, step in behind.items() if step == first and step < version]
        return (
            f"has seen {first} steps of slots {_listed([self.slots[p] for p in of])}; {_waits_for(first, missing)}",
            missing,
        )

    def _open(self, place: int, step: int, first: int, stop: int) -> Array:
        """At which slices a step is not applied, so that what is said of it still counts."""
        done = self.version if self._together else self.through[place]
        found: Array = done[first:stop] <= step
        return found


def _waits_for(step: int, missing: list[int]) -> str:
    return f"step {step} waits for slots {_listed(missing) or 'none: it is being merged'}"


def _listed(slots: list[int]) -> str:
    return ", ".join(map(str, slots))


def _word(step: int | Array, *, pushes: bool) -> Any:
    """What a slot says of a step, as a number; those of later steps are larger."""
    return 2 * step + int(not pushes)


# --- A bucket's way through its steps ---------------------------------------------------------------------------------


MOST_RESTORED: Final = 1 << 60
"""Steps that a store may begin with: what is counted from there stays within 64 bits."""


class Arrival(NamedTuple):
    """Gradients of a step that are in and not merged, from contributing slot number `place` in its `life`."""

    place: int
    life: int
    step: int
    segment: Segment


class BucketState:
    """Invariants: a slice's sum is of its next step; `_merged` counts the slots in it. `_lives` counts the incarnations
    of each slot. `_early[p, step]` has what came of slot number p before the step before: no more than STEPS_AHEAD
    steps of a slice, and none that is due."""

    def __init__(self, spec: BucketSpec, values: Array, given: Array, *, lent_at: int | None = None) -> None:
        """`values` are the first values (elements); where a slice is `given` (slices) bool they are set later.
        `lent_at`: see `OneBuffer`."""
        count = self.count = len(spec.part)
        bounds = spec.part.bounds // values.dtype.itemsize
        self.spec = spec
        self.bounds = bounds
        self.steps = BucketSteps(spec.slots, count, together=spec.together)
        self.update = BucketUpdate(spec, BucketValues(values, bounds, in_one=spec.is_whole, lent_at=lent_at))
        self.sets = BucketSets(spec, self.steps.version, self.update.values, given)
        self.applied: Callable[[int, int, int, int], None] | None = None
        """Told (slot, step, first, stop) of each slot's gradients when they are merged, where somebody asks."""
        self.reached: Callable[[int, int, int], None] | None = None
        """Told (version, first, stop) of slices that have come to a version together, where somebody asks."""
        self._sums = BucketSums(count, bounds)
        self._is_alone = len(spec.slots) == 1
        """Whether a step's sum is what its one slot has pushed."""
        self._sum_dtype = sum_dtype(values.dtype) if spec.update is Update.MEAN else values.dtype
        self._adds_late = spec.update is Update.RULE and spec.rule.anywhere and spec.gate is None and not spec.is_whole
        self._order: MergeOrder = _order(spec, bounds)
        self._merged = np.zeros(count, np.int64)
        self._gate = None if spec.gate is None else BucketGate(spec.gate, spec, self._sums, bounds)
        self._lives = [0] * len(spec.slots)
        self._early: dict[tuple[int, int], PendingSegments] = {}

    def __len__(self) -> int:
        """How many slices."""
        return self.count

    @property
    def nbytes(self) -> int:
        """Of the values."""
        return int(self.spec.part.bounds[-1])

    def push(self, slot: int, step: int, segment: Segment) -> list[Arrival]:
        """Takes in a slot's gradients: see `check` and `accept`."""
        place = self.steps.places.get(slot)
        if place is not None and not self._early and self.steps.take_next(place, step, segment.first, segment.stop):
            return [Arrival(place, self._lives[place], step, segment)]
        self.check(slot, step, segment.first, segment.stop, pushes=True)
        return self.accept(slot, step, segment)

    def check(self, slot: int, step: int, first: int, stop: int, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradients, or its word that it has none, contradict what is there."""
        place = self.steps.place_of(slot, self._where(slot, step, first))
        self.steps.check(place, step, first, stop, pushes=pushes, where=lambda slice_: self._where(slot, step, slice_))
        early = self._early.get((place, step)) if self._early else None
        for segment in early.within(first, stop) if early is not None else ():
            if (segment.elements is not None) != pushes:
                where = self._where(slot, step, max(segment.first, first))
                raise PushRefusedError(f"{where}: {contradiction(before=not pushes)}")

    def accept(self, slot: int, step: int, segment: Segment) -> list[Arrival]:
        """Takes in what `check` lets pass: gradients, which are written later, or that there are none. What may now be
        merged; what was in before changes nothing: exactly once holds."""
        place = self.steps.places[slot]
        found = fresh = self._taken(place, step, segment)
        while self._early and fresh and (early := self._timely(place, step + 1, fresh)):
            step += 1
            fresh = [one for some in early for one in self._taken(place, step, some)]
            found = found + fresh
        return found

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

    def advance(self, todo: list[Range], arrival: Arrival | None = None) -> Range | None:
        """The next piece of work on the slices `todo`, from which it takes what it has done: the slices that it has
        changed, or None where nothing more can be done. An `arrival` is of all of them, and comes with the first piece.
        Raises RuleFailedError, MemoryError."""
        known = None
        if arrival is not None:
            if arrival.life != self._lives[arrival.place]:
                return None  # A newer incarnation fills the slot.
            known, is_applied = self._take(arrival)
            if is_applied:
                order = self._order
                if not order.waiting or (self.spec.together and not order.holds(arrival.step + 1)):
                    todo.clear()
                return arrival.segment.first, arrival.segment.stop
        return self._advance(todo, known) if self.spec.together else self._advance_alone(todo)

    def _take(self, arrival: Arrival) -> tuple[tuple[int, int, int] | None, bool]:
        """Adds what has come, where it is next, or keeps it until it is. What `_alike` says then, if that is known, and
        whether it was the last of its step, which is applied."""
        spec, (place, _, step, segment) = self.spec, arrival
        first, stop = segment.first, segment.stop
        if spec.together:
            end, merged, version = self._alike(first, stop)
            # As it is where slots come in order: what is next of all its slices need not wait first.
            if end < stop or version != step or not (self._is_alone or self._order.is_next(place, version, merged)):
                self._order.put(place, step, segment)
                return None, False
            if merged + 1 == len(spec.slots) and self._is_free(version, first, stop):
                given = segment if self._sum_dtype is self.update.values.dtype else self._as_sum(segment)
                if self._is_alone:
                    total = None if given.elements is None or given.parts else Total(given, None, 1)
                else:
                    total = self._sums.closed(given, late=self._adds_late)
                if total is not None:
                    self._is_merged(place, step, segment)
                    self._complete(version, first, stop, total)
                    return None, True
            self._add(place, step, segment)
            return (end, merged + 1, version), False
        end, _, version = self._alike(first, stop, self.steps.through[place])
        if end == stop and version == step and not segment.parts and self._is_free(version, first, stop):
            self._apply_alone(place, step, segment)
            return None, True
        self._order.put(place, step, segment)
        return None, False

    def _advance(self, todo: list[Range], known: tuple[int, int, int] | None) -> Range | None:
        """Of steps that apply together: see `advance`. `known`: what `_alike` says of the only slices to do."""
        spec, order = self.spec, self._order
        while todo:
            low, high = todo.pop()
            (end, merged, version), known = known or self._alike(low, high), None
            if end < high:
                todo.append((end, high))
            if merged < len(spec.slots):
                for place, segment in order.next(version, merged, low, end) if order.waiting else ():
                    self._add(place, version, segment)
                    todo.append((segment.first, segment.stop))
            elif (not spec.is_whole or self._is_due(merged, version)) and (
                piece := self._first_piece(low, end)
            ) is not None:
                if piece[1] < end:
                    todo.append((piece[1], end))
                if not self._is_held(version) and (self._gate is None or self._gate.passes(version, *piece)):
                    self._complete(version, *piece)
                    if order.waiting and order.holds(version + 1):
                        todo.append(piece)
                    return piece
        return None

    def _advance_alone(self, todo: list[Range]) -> Range | None:
        """Of slots whose gradients are updates of their own, of each slice one step after the other: see `advance`.
        Work may be done in any order."""
        while todo and self._order.waiting:
            piece = self._first_piece(*todo[-1])
            if piece is None:
                todo.pop()
                continue
            for place in range(len(self.spec.slots)):
                for low, high, step in ranges_alike(self.steps.through[place, piece[0] : piece[1]], piece[0]):
                    if self._is_held(step) or (self.spec.is_whole and not self._order.has_all(step, place, low, high)):
                        continue
                    found = [segment for _, segment in self._order.next(step, place, low, high)]
                    if self.spec.is_whole and found:
                        found = [_joined(found)]
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
        return hold is not None and hold.held is not None and hold.holds(step)

    def _is_free(self, step: int, first: int, stop: int) -> bool:
        """Whether a step of these slices can be applied in one piece as soon as all of it is there."""
        hold = self.spec.hold
        if self._gate is not None or self.spec.is_whole or not self.sets.complete:
            return False
        if hold is not None and hold.held is not None and hold.holds(step):
            return False
        return stop - first == 1 or self._first_piece(first, stop) == (first, stop)

    def begun(self, first: int, stop: int) -> tuple[int, str]:
        """Of some slices: see `Changed`. What has come early counts wherever it belongs."""
        came = self.steps.came[:, first:stop].max(axis=0)
        at = first + int(came.argmax())
        step = max([int(came.max()), *(step + 1 for _, step in self._early)])
        return step, f"step {step - 1} of {self.spec.key_named(at)} has begun"

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten."""
        place = self.steps.places.get(slot)
        if place is None:
            return
        self._lives[place] += 1
        self._order.forget(place)
        for key in [key for key in self._early if key[0] == place]:
            del self._early[key]
        self.steps.forget(place)

    def _where(self, slot: int, step: int, slice_: int) -> str:
        return f"slot {slot}, {self.spec.named(slice_)}, step {step}"

    def _taken(self, place: int, step: int, segment: Segment) -> list[Arrival]:
        pushes = segment.elements is not None
        taken, early = self.steps.accept(place, step, segment.first, segment.stop, pushes=pushes)
        if len(taken) == 1 and taken[0] == (segment.first, segment.stop):
            return [Arrival(place, self._lives[place], step, segment)]
        cut = PendingSegments(self.bounds)
        for first, stop in early:
            pending = self._early.setdefault((place, step), PendingSegments(self.bounds))
            pending.take(first, stop)  # What was sent again takes the place of what came first: it is the same.
            pending.put(cut.part(segment, first, stop))
        life = self._lives[place]
        return [Arrival(place, life, step, cut.part(segment, first, stop)) for first, stop in taken]

    def _timely(self, place: int, step: int, fresh: list[Arrival]) -> list[Segment]:
        """Takes out what has come early from a slot of a step, of the slices whose step before has just been taken in:
        nothing else has become due."""
        pending = self._early.get((place, step))
        if pending is None:
            return []
        found = [segment for one in fresh for segment in pending.take(one.segment.first, one.segment.stop)]
        if not pending:
            del self._early[place, step]
        return found

    def _is_due(self, merged: int, version: int) -> bool:
        """Whether slices of a whole key may be updated, of which so many slots are merged: they wait for each other."""
        return self._alike(0, len(self)) == (len(self), merged, version)

    def _alike(self, first: int, stop: int, versions: Array | None = None) -> tuple[int, int, int]:
        """How far slices are alike from the first on, how many slots are merged in their next step, and which it is;
        of `versions` (slices) where those of the bucket are not meant."""
        if versions is None:
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

    def _as_sum(self, segment: Segment) -> Segment:
        """Gradients in the type in which they are added."""
        elements = segment.elements
        return (
            segment if elements is None or elements.dtype == self._sum_dtype else segment_as(segment, self._sum_dtype)
        )

    def _add(self, place: int, step: int, segment: Segment) -> None:
        """Adds a slot's gradients to sums of equally many slots; the last as the rule runs, where that may be."""
        last = self._adds_late and int(self._merged[segment.first]) + 1 == len(self.spec.slots)
        self._sums.add(self._as_sum(segment), last=last)
        self._merged[segment.first if segment.stop - segment.first == 1 else slice(segment.first, segment.stop)] += 1
        self._is_merged(place, step, segment)

    def _is_merged(self, place: int, step: int, segment: Segment) -> None:
        first, stop = segment.first, segment.stop
        self.steps.through[place, first if stop - first == 1 else slice(first, stop)] = step + 1
        if self.applied is not None and segment.elements is not None:
            self.applied(self.spec.slots[place], step, first, stop)

    def _complete(self, step: int, first: int, stop: int, total: Total | None = None) -> None:
        """Applies a step; its `total` where that was taken from the sums."""
        if total is not None:
            self.update.with_gradient(total.total, total.contributors, step, total.addend)
        else:
            alike = self._sums.contributors[first:stop]
            for low, high, contributors in ranges_alike(alike if stop - first == 1 else alike.copy(), first):
                if not contributors:
                    self.update.without_gradient(low, high, step)
                sums = self._sums.take(low, high)
                if self.spec.is_whole and contributors:
                    sums = iter([Sum(_joined([one.total for one in sums]))])
                for one in sums:
                    self.update.with_gradient(one.total, contributors, step, one.addend)
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
            self.update.with_gradient(segment, 1, step)
        through = self.steps.through
        if stop - first == 1:
            through[place, first] = step + 1
            self.steps.version[first] = min(through[:, first].tolist())
        else:
            through[place, first:stop] = step + 1
            self.steps.version[first:stop] = through[:, first:stop].min(axis=0)
        if self.applied is not None and segment.elements is not None:
            self.applied(self.spec.slots[place], step, first, stop)


def _joined(parts: list[Segment]) -> Segment:
    """Slices that follow each other, their elements in one array."""
    if len(parts) == 1 and not parts[0].parts:
        return parts[0]
    whole = [one for segment in parts for one in segment.parts or (segment,)]
    arrays = [one.elements for one in whole if one.elements is not None]
    return Segment(whole[0].first, whole[-1].stop, np.concatenate(arrays) if arrays else None)


def _order(spec: BucketSpec, bounds: Array) -> MergeOrder:
    """Where each slot goes on by itself, only its own steps have an order."""
    return SlotOrder(bounds) if spec.merge is Merge.SLOT or not spec.together else ArrivalOrder(bounds)
