"""Values that were set in a bucket: at once, for a version to come, and where there is no first value. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import numpy as np

from weft_kvstore.arrays import Array, Range, Ranges, Segment, ranges_where
from weft_kvstore.bucket.sums import PendingSegments
from weft_kvstore.bucket.update import BucketSpec, BucketValues
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import SETS_AHEAD, SETS_WAITING

SETS_KEPT: Final = 1024
"""How many of the last calls that set something are known again, should they come again after a broken connection."""


class BucketSets:
    """`version` (slices) int64 is that of each slice, and changed by others. Invariant: `ahead` holds only versions
    beyond it."""

    __slots__ = ("_given", "_lacking", "_spec", "_taken", "_values", "_version", "ahead", "complete")

    def __init__(self, spec: BucketSpec, version: Array, values: BucketValues, given: Array) -> None:
        self._spec = spec
        self._version = version
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

    def check(self, slot: int, version: int, first: int, stop: int, origin: Hashable) -> None:
        """Raises PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        if self._spec.holds_at_once:
            return
        for low, high in self.new(first, stop, origin):
            now = self._version[low:high]
            if version == 0 and not self._given[low:high].all():
                at = low + int((~self._given[low:high]).argmax())
                raise PushRefusedError(f"{self._where(slot, version, at)}: version 0 is the initializer's")
            if version < int(now.max()):
                at = low + int(now.argmax())
                raise PushRefusedError(f"{self._where(slot, version, at)}: it is at version {now.max()} already")
            if version > int(now.min()) + SETS_AHEAD:
                detail = f"more than {SETS_AHEAD} ahead of version {now.min()}"
                raise PushRefusedError(f"{self._where(slot, version, low + int(now.argmin()))}: {detail}")
            full = self._full(version, low, high)
            if full.any():
                at = low + int(full.argmax())
                waiting = sorted(one for one, pending in self.ahead.items() if pending.within(at, at + 1))
                detail = f"values wait for versions {waiting} already"
                raise PushRefusedError(f"{self._where(slot, version, at)}: {detail}")

    def accept(self, version: int, segment: Segment, origin: Hashable) -> list[Range]:
        """Takes in what `check` lets pass, once. The ranges for which pulls or a merge may have waited."""
        pending, changed = PendingSegments(self._values.bounds), []
        for low, high in self.new(segment.first, segment.stop, origin):
            now = self._version[low:high]
            if not self._spec.holds_at_once:
                at_once, later = now == version, now < version
            else:
                later = np.zeros(high - low, np.bool_)
                at_once = ~later if version or not self._spec.slots else self._open(low, high)
            for first, stop in ranges_where(at_once, low):
                self._put(pending.part(segment, first, stop))
                changed.append((first, stop))
            for first, stop in ranges_where(later, low):
                ahead = self.ahead.setdefault(version, PendingSegments(self._values.bounds))
                ahead.take(first, stop)
                ahead.put(pending.part(segment, first, stop))
        self._know(segment.first, segment.stop, origin)
        return changed

    def restore(self, segment: Segment, origin: Hashable, *, is_value: bool) -> None:
        """Something of these slices was restored by a call: `is_value`, this is their value."""
        if is_value:
            self._put(segment)
        self._know(segment.first, segment.stop, origin)

    def reached(self, version: int, first: int, stop: int) -> None:
        """These slices are at a version now: what was set for it holds."""
        ahead = self.ahead.get(version)
        if ahead is None:
            return
        for segment in ahead.take(first, stop):
            self._put(segment)
        if not ahead:
            del self.ahead[version]

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
            for segment in pending.within(first, stop):
                here = slice(max(segment.first - first, 0), segment.stop - first)
                waiting[here] += 1
                there[here] |= ahead == version
        found: Array = (waiting >= SETS_WAITING) & ~there & (self._version[first:stop] < version)
        return found

    def _put(self, segment: Segment) -> None:
        self._values.write(segment)
        if not self.complete:
            self._lacking[segment.first : segment.stop] = False
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
