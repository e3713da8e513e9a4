"""Whose turn it is, by bytes: who has used least goes first. Pure.

Start-time fair queueing: Goyal, Vin and Cheng, "Start-time fair queuing: a scheduling algorithm for integrated services
packet switching networks", 1996. Against deficit round robin, which shares alike: who asks for little and often need
not wait for a round of the others each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

QUANTUM_BYTES: Final = 1 << 20
"""How far behind the others somebody may stand who comes back: what they may do at once before it is another's turn."""

J = TypeVar("J", bound=Hashable)


class Turns(Generic[J]):
    """`_used` has what each has used; `_now` is where whoever went last began."""

    __slots__ = ("_now", "_used")

    def __init__(self) -> None:
        self._used: dict[J, int] = {}
        self._now = 0

    def come(self, one: J) -> None:
        """It wants a turn, and did not so far: what it left unused counts for no more than a quantum."""
        self._used[one] = max(self._used.get(one, 0), self._now - QUANTUM_BYTES)

    def first(self, of: Iterable[J]) -> J:
        """Whose turn it is among those that have come; of equals the first."""
        return min(of, key=self._used.__getitem__)

    def use(self, one: J, nbytes: int) -> None:
        """It has had its turn, or more of it."""
        begun = self._used.get(one, self._now)
        self._now = max(self._now, begun)
        self._used[one] = begun + nbytes

    def drop(self, one: J) -> None:
        """It will not come again."""
        self._used.pop(one, None)
