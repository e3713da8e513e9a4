"""A barrier: what a slot says when it has sent all of a step. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any

from weft_kvstore.operations.operation import AskOperation, Link
from weft_kvstore.sharding.routing import Routing
from weft_kvstore.wire.messages import MAX_RUNS, Barrier


class BarrierOperation(AskOperation):
    """A barrier; `nothing` are the places of keys that the slot has nothing for. What it says of those that are held
    comes later: a large value that was set keeps the slot's word on this key back, and on no other."""

    def __init__(self, future: Future[Any], step: int, nothing: list[int]) -> None:
        super().__init__(future)
        self.step = step
        self.nothing = nothing
        self._held: set[int] = set()

    @property
    def asks_of(self) -> Sequence[int]:
        return self.nothing

    @property
    def parts(self) -> int:
        """How many messages it takes, and one more while some are held."""
        return max(_messages(len(self.nothing) - len(self._held)) + bool(self._held), 1)

    def prepare(self, routing: Routing) -> dict[int, int]:
        return dict.fromkeys(range(routing.shards), self.parts)

    def hold(self, places: Collection[int]) -> bool:
        self._held.update(places)
        return True

    def go_on(self, places: Sequence[int], links: Sequence[Link], *, whole: bool) -> None:
        self._held.difference_update(places)
        for link in links:
            self.pending[link.shard] += _messages(len(places)) - whole
            self._say(link, places)

    def make(self, link: Link) -> None:
        self.pending[link.shard] = self.parts
        self.declare(link)

    def declare(self, link: Link) -> None:
        """Says what the slot has nothing for, as far as it is not held."""
        free = [place for place in self.nothing if place not in self._held]
        if free or not self._held:
            self._say(link, free)

    def done(self, shard: int) -> bool:
        return self.settle(shard)

    def _say(self, link: Link, places: Sequence[int]) -> None:
        for begin in range(0, max(len(places), 1), MAX_RUNS):
            link.say(Barrier(self.number, self.step, list(places[begin : begin + MAX_RUNS])))

    def __str__(self) -> str:
        return f"barrier of step {self.step}"


def _messages(places: int) -> int:
    """How many it takes to say something of so many keys."""
    return -(-places // MAX_RUNS)
