"""The steps of a bucket's slices: which are in and merged by slot, and the values that were set between them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array, PendingSegments, Range, Ranges, Segment, greatest, least, ranges_where
from weft_kvstore.bucket.gate import PushRefusedError, check_contributes, contradiction, numbers, waits
from weft_kvstore.bucket.update import BucketSpec, BucketValues
from weft_kvstore.settings import SETS_AHEAD, SETS_WAITING, STEPS_AHEAD

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


# --- Values that were set in a bucket: at once, for a version to come, and where there is no first value --------------


SETS_KEPT: Final = 1024
"""How many of the last calls that set something are known again, should they come again after a broken connection."""


class BucketSets:
    """Invariant: `ahead` holds only versions beyond the present one of their slices."""

    __slots__ = ("_given", "_lacking", "_spec", "_steps", "_taken", "_values", "ahead", "complete")

    def __init__(self, spec: BucketSpec, steps: BucketSteps, values: BucketValues, given: Array) -> None:
        self._spec = spec
        self._steps = steps
        self._values = values
        self._given = given
        self._lacking = given.copy()
        self.complete = not given.any()
        """Whether every slice has a value."""
        self.ahead: dict[int, PendingSegments] = {}
        self._taken: OrderedDict[Hashable, Ranges] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Slices that were set for versions that are still to come."""
        return sum(len(pending) for pending in list(self.ahead.values()))

    def lacks(self, first: int, stop: int) -> bool:
        """Whether one of these slices was never set, and has no first value."""
        return bool(self._lacking[first:stop].any())

    def lacking(self, first: int, stop: int) -> Array:
        """Which of these slices were never set (stop - first) bool."""
        found: Array = self._lacking[first:stop]
        return found

    def whole(self, first: int, stop: int) -> list[Range]:
        """The ranges of these slices that have a value."""
        return ranges_where(~self._lacking[first:stop], first)

    def check(self, slot: int, version: int, first: int, stop: int, origin: Hashable) -> None:
        """Raises PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        if self._holds_at_once:
            return
        for low, high in self.new(first, stop, origin):
            now = self._steps.version[low:high]
            if version == 0 and not self._given[low:high].all():
                at = low + int((~self._given[low:high]).argmax())
                raise PushRefusedError(f"{self._where(slot, version, at)}: version 0 is the initializer's")
            if version < int(now.max()):
                at = low + int(now.argmax())
                raise PushRefusedError(f"{self._where(slot, version, at)}: it is at version {now.max()} already")
            if version > int(now.min()) + SETS_AHEAD:
                told = f"more than {SETS_AHEAD} ahead of version {now.min()}"
                raise PushRefusedError(f"{self._where(slot, version, low + int(now.argmin()))}: {told}")
            full = self._full(version, low, high)
            if full.any():
                at = low + int(full.argmax())
                waiting = sorted(one for one, pending in self.ahead.items() if pending.within(at, at + 1))
                told = f"values wait for versions {waiting} already"
                raise PushRefusedError(f"{self._where(slot, version, at)}: {told}")

    def accept(self, version: int, laid: Segment, origin: Hashable) -> list[Range]:
        """Takes in what `check` lets pass, once. The ranges for which pulls or a merge may have waited."""
        pending, changed = PendingSegments(self._values.bounds), []
        for low, high in self.new(laid.first, laid.stop, origin):
            now = self._steps.version[low:high]
            if not self._holds_at_once:
                at_once, later = now == version, now < version
            else:
                later = np.zeros(high - low, np.bool_)
                at_once = ~later if version or not self._spec.slots else self._open(low, high)
            for first, stop in ranges_where(at_once, low):
                self._put(pending.part(laid, first, stop))
                changed.append((first, stop))
            for first, stop in ranges_where(later, low):
                ahead = self.ahead.setdefault(version, PendingSegments(self._values.bounds))
                ahead.take(first, stop)
                ahead.put(pending.part(laid, first, stop))
        self._know(laid.first, laid.stop, origin)
        return changed

    def restore(self, laid: Segment, origin: Hashable, *, is_value: bool) -> None:
        """Something of these slices was restored by a call: `is_value`, this is their value."""
        if is_value:
            self._put(laid)
        self._know(laid.first, laid.stop, origin)

    def reached(self, version: int, first: int, stop: int) -> None:
        """These slices are at a version now: what was set for it holds."""
        ahead = self.ahead.get(version)
        if ahead is None:
            return
        for laid in ahead.take(first, stop):
            self._put(laid)
        if not ahead:
            del self.ahead[version]

    @property
    def _holds_at_once(self) -> bool:
        """Whether a value that is set waits for no step: slots go on by themselves, or nobody contributes."""
        return not self._spec.together or not self._spec.slots

    def _open(self, first: int, stop: int) -> Array:
        """At which slices version 0 can be set where steps go on by themselves (stop - first) bool: a first value is
        given once, so that a process that starts anew does not undo what was learned since."""
        found: Array = self._lacking[first:stop] | ~self._given[first:stop]
        return found

    def _full(self, version: int, first: int, stop: int) -> Array:
        """At which slices no value for one more version can wait (stop - first) bool: each counts for itself, whatever
        it travels with."""
        waiting, there = np.zeros(stop - first, np.int64), np.zeros(stop - first, np.bool_)
        for ahead, pending in self.ahead.items():
            for laid in pending.within(first, stop):
                here = slice(max(laid.first - first, 0), laid.stop - first)
                waiting[here] += 1
                there[here] |= ahead == version
        found: Array = (waiting >= SETS_WAITING) & ~there & (self._steps.version[first:stop] < version)
        return found

    def _put(self, laid: Segment) -> None:
        elements, origin = laid.elements, self._values.bounds[laid.first]
        assert elements is not None
        for low, high, weight in self._values.written(laid.first, laid.stop):
            np.copyto(weight, elements[self._values.bounds[low] - origin : self._values.bounds[high] - origin])
        if not self.complete:
            self._lacking[laid.first : laid.stop] = False
            self.complete = not self._lacking.any()

    def new(self, first: int, stop: int, origin: Hashable) -> list[Range]:
        """What of a range has not been set, or restored, by that call before."""
        known = self._taken.get(origin)
        if known is None:
            return [(first, stop)]
        new = np.full(stop - first, True)
        for low, high in known.overlaps(first, stop):
            new[low - first : high - first] = False
        return ranges_where(new, first)

    def _know(self, first: int, stop: int, origin: Hashable) -> None:
        self._taken.setdefault(origin, Ranges()).add(first, stop)
        while len(self._taken) > SETS_KEPT:
            self._taken.popitem(last=False)

    def _where(self, slot: int, version: int, slice_: int) -> str:
        return f"slot {slot}, {self._spec.named(slice_)}, version {version}: the value cannot be set"
