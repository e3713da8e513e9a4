"""The keys of one call, in its order, with what every call of them needs anew. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.description.records import KeyDescription
from weft_kvstore.operations.key_plan import KeyPlan, key_plan
from weft_kvstore.sharding.routing import Routing

NAMES_SHOWN: Final = 4


class KeySet:
    """Keys that are pushed, set or pulled together; none is a table, and none is there twice.

    `places` are those in the description. `others` are the keys to which the slot of the call does not contribute,
    `moving` the numbers of those to which anybody does. The plan is made once, at the first call: two threads that make
    it at once make the same.
    """

    __slots__ = ("_plan", "dtypes", "moving", "names", "others", "places", "shapes")

    def __init__(self, keys: Sequence[KeyDescription], places: Sequence[int], slot: int) -> None:
        self.places = tuple(places)
        self.names = tuple(key.key for key in keys)
        self.dtypes: tuple[np.dtype[Any], ...] = tuple(np.dtype(key.dtype) for key in keys)
        self.shapes = tuple(tuple(key.shape) for key in keys)
        self.others = tuple(key for key in keys if slot not in key.slots)
        self.moving = tuple(number for number, key in enumerate(keys) if key.slots)
        self._plan: KeyPlan | None = None

    def __len__(self) -> int:
        return len(self.names)

    def described(self, number: int) -> str:
        """A key's dtype and shape, in words."""
        return f"{self.dtypes[number]}{list(self.shapes[number])}"

    def plan(self, routing: Routing) -> KeyPlan:
        """Where they lie; `routing` is the same in every call."""
        if self._plan is None:
            self._plan = key_plan(routing, self.places, self.dtypes, self.shapes)
        return self._plan

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"key {self.names[0]!r}"
        shown = ", ".join(map(repr, self.names[:NAMES_SHOWN]))
        more = len(self.names) - NAMES_SHOWN
        return f"{len(self.names)} keys ({shown}{f' and {more} more' if more > 0 else ''})"
