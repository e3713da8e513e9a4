"""Values that are set: which versions may be, and once each. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable

import numpy as np

from weft_kvstore.arrays import Range, Ranges, ranges_where
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
