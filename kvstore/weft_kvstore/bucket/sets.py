"""Values that are set: which versions may be, once each; and those of a bucket, at once or for a version to come.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable

import numpy as np

from weft_kvstore.arrays import Array, Range, Ranges, Segment, ranges_alike, ranges_where
from weft_kvstore.bucket.arrays import BucketValues, PendingSegments
from weft_kvstore.bucket.update import BucketSpec
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import SETS_AHEAD, SETS_KEPT, SETS_WAITING


class KnownSets:
    """Which slices the last calls have set or restored, so that each is taken in once."""

    def __init__(self) -> None:
        self._slices: OrderedDict[Hashable, Ranges] = OrderedDict()

    def new(self, first: int, stop: int, origin: Hashable) -> list[Range]:
        """What of a range a call has not set before."""
        known = self._slices.get(origin)
        if known is None:
            return [(first, stop)]
        new = np.full(stop - first, True)
        for low, high in known.overlaps(first, stop):
            new[low - first : high - first] = False
        return ranges_where(new, first)

    def add(self, first: int, stop: int, origin: Hashable) -> None:
        self._slices.setdefault(origin, Ranges()).add(first, stop)
        if len(self._slices) > SETS_KEPT:
            self._slices.popitem(last=False)


def check_version(where: str, version: int, now: int, passed: int, *, given: bool, waiting: Collection[int]) -> None:
    """Raises PushRefusedError for a value of a version that cannot be set. `passed`: nothing before it can be; `given`:
    the first value is set, and made by no initializer; `waiting`: the versions for which values wait."""
    detail = ""
    if version == 0 and not given:
        detail = "version 0 is the initializer's"
    elif version < passed:
        detail = f"it is at version {passed} already"
    elif version > now + SETS_AHEAD:
        detail = f"more than {SETS_AHEAD} ahead of version {now}"
    elif version > now and version not in waiting and len(waiting) >= SETS_WAITING:
        detail = f"values wait for versions {sorted(waiting)} already"
    if detail:
        raise PushRefusedError(f"{where}, version {version}: the value cannot be set: {detail}")


class BucketSets:
    """`version` (slices) int64 is that of each slice, and changed by others. `pending` has values for versions to come,
    by the number of a slot and the version: of the slot where slots go on by themselves, else of number 0."""

    __slots__ = ("_given", "_spec", "_unset", "_values", "_version", "complete", "known", "pending")

    def __init__(self, spec: BucketSpec, version: Array, values: BucketValues, given: Array) -> None:
        self._spec = spec
        self._version = version
        self._values = values
        self._given = given
        self._unset = given.copy()
        self.complete = not given.any()
        """Whether every slice has a value."""
        self.pending: dict[tuple[int, int], PendingSegments] = {}
        self.known = KnownSets()

    def unset(self, first: int, stop: int) -> Array:
        """Which of these slices were never set, and have no first value (stop - first) bool."""
        found: Array = self._unset[first:stop]
        return found

    def check(self, slot: int, version: int, first: int, stop: int, origin: Hashable) -> None:
        """Raises PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        if self._spec.holds_at_once:
            return
        for low, high in self.known.new(first, stop, origin):
            for begin, end, now in ranges_alike(self._version[low:high], low):
                at = begin + int(self._given[begin:end].argmin())  # The first that is not, if there is one.
                for slice_ in range(begin, end) if self.pending else (at,):  # Each counts what waits for itself.
                    waiting = [one for (_, one), some in self.pending.items() if some.within(slice_, slice_ + 1)]
                    where, given = f"slot {slot}, {self._spec.named(slice_)}", bool(self._given[slice_])
                    check_version(where, version, now, now, given=given, waiting=waiting)

    def accept(
        self, version: int, segment: Segment, origin: Hashable, index: int = 0, pushed: Array | None = None
    ) -> list[Range]:
        """Takes in what `check` lets pass, once. The ranges for which pulls or a merge may have waited. Where slots go
        on by themselves: `pushed` has the version of slot number `index` behind which it comes, of each slice
        (segment), 0 where it holds at once."""
        pending, changed = PendingSegments(self._values.bounds), []
        for low, high in self.known.new(segment.first, segment.stop, origin):
            now = self._version[low:high]
            if not self._spec.holds_at_once:
                at_once, later = now == version, np.where(now < version, version, 0)
            else:
                later = np.zeros(high - low, np.int64)
                if pushed is not None:  # What was pushed may wait for a first value.
                    later += np.where(self._unset[low:high], 0, pushed[low - segment.first : high - segment.first])
                at_once = later == 0
                if not version and self._spec.slots:
                    # A first value is given once: a process that starts anew does not undo what was learned since.
                    at_once, later = (
                        np.where(self._given[low:high], *both)
                        for both in ((self._unset[low:high], at_once), (0, later))
                    )
            for first, stop in ranges_where(at_once, low):
                self.put(pending.narrow(segment, first, stop))
                changed.append((first, stop))
            for first, stop, number in ranges_alike(later, low):
                if not number:
                    continue
                waiting = self.pending.setdefault((index, number), PendingSegments(self._values.bounds))
                waiting.take(first, stop)
                waiting.put(pending.narrow(segment, first, stop))
        self.known.add(segment.first, segment.stop, origin)
        return changed

    def reached(self, version: int, first: int, stop: int, index: int = 0) -> None:
        """These slices are at a version now, of slot number `index`: what was set for it holds."""
        waiting = self.pending.get((index, version))
        if waiting is None:
            return
        for segment in waiting.take(first, stop):
            self.put(segment)
        if not waiting:
            del self.pending[index, version]

    def put(self, segment: Segment) -> None:
        """These slices have this value now."""
        self._values.write(segment)
        if not self.complete:
            self._unset[segment.first : segment.stop] = False
            self.complete = not self._unset.any()
