"""Whether jobs share a shard just now. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

J = TypeVar("J", bound=Hashable)


class Company(Generic[J]):
    """Who was heard since the tick before the last one: for half a second at least, as a shard ticks."""

    __slots__ = ("_before", "_lately", "is_shared")

    def __init__(self) -> None:
        self._lately: set[J] = set()
        self._before: set[J] = set()
        self.is_shared = False

    def hear(self, one: J) -> bool:
        """True if it was not heard lately."""
        if one in self._lately:
            return False
        new = one not in self._before
        self._lately.add(one)
        if new:
            self.is_shared = len(self.all()) > 1
        return new

    def forget(self, one: J) -> None:
        """What was heard of it was of somebody else."""
        self._lately.discard(one)
        self._before.discard(one)
        self.is_shared = len(self.all()) > 1

    def tick(self) -> None:
        """Some time has passed."""
        self._before, self._lately = self._lately, set()
        self.is_shared = len(self._before) > 1

    def all(self) -> set[J]:
        return self._lately | self._before
