"""A barrier where steps are committed: every shard is asked what the step amounts to, and told what all do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any

from weft_kvstore.arrays.exact_sum import norm_of
from weft_kvstore.operations.barrier_operation import BarrierOperation
from weft_kvstore.operations.operation import Link, Operation
from weft_kvstore.sharding.routing import Routing
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import Cancel, Commit, Measure, Measured


class CommitOperation(BarrierOperation):
    """It ends with a StepOutcome once every shard has taken in the commit.

    Of each shard the barrier's parts are missing, then its measurement, then that it has the commit. `_outcome` is
    there once the last has measured; a connection that is made anew says what was said last.
    """

    def __init__(self, future: Future[Any], step: int, nothing: list[int]) -> None:
        super().__init__(future, step, nothing)
        self._links: dict[int, Link] = {}
        self._measured: dict[int, Measured] = {}
        self._outcome: StepOutcome | None = None

    def hold(self, places: Collection[int]) -> bool:
        return False  # No key's step is committed before all others'.

    def go_on(self, places: Sequence[int], links: Sequence[Link], *, whole: bool) -> None:
        Operation.go_on(self, places, links, whole=whole)

    def prepare(self, routing: Routing) -> dict[int, int]:
        return dict.fromkeys(range(routing.shards), self.parts + 2)

    def begin(self, link: Link) -> None:
        self._links[link.shard] = link
        super().begin(link)

    def make(self, link: Link) -> None:
        if self._outcome is not None:
            self.pending[link.shard] = 1
            self._commit(link, self._outcome)
        elif link.shard not in self._measured:
            self.pending[link.shard] = self.parts + 2
            self.declare(link)
            link.say(Measure(self.number, self.step))

    def measured(self, shard: int, message: Measured) -> bool:
        if shard in self._measured:
            raise ProtocolError(f"Measured.request: {self.number}, {self} has this shard's measurement")
        other = next(iter(self._measured.values()), message)
        if other.scale != message.scale:
            raise ProtocolError(f"Measured.scale: {message.scale}, another shard has {other.scale}")
        self._measured[shard] = message
        self.settle(shard)
        if len(self._measured) == len(self._links):
            terms = [term for one in self._measured.values() for term in one.squares]
            finite = all(one.finite for one in self._measured.values())
            self._outcome = outcome_of(self.step, terms, finite=finite, scale=message.scale)
            for link in self._links.values():
                self._commit(link, self._outcome)
        return False

    def give_up(self, link: Link) -> None:
        super().give_up(link)
        link.say(Cancel([self.number]))

    def result(self) -> StepOutcome | None:
        return self._outcome

    def let_go(self) -> None:
        self._links = {}

    def _commit(self, link: Link, outcome: StepOutcome) -> None:
        link.say(Commit(self.number, self.step, outcome.norm, int(outcome.finite)))

    def __str__(self) -> str:
        return f"barrier and commit of step {self.step}"


def outcome_of(step: int, terms: list[float], *, finite: bool, scale: float) -> StepOutcome:
    """What a step is whose merged gradient has squares of which `terms` are the exact sum; without a norm where a part
    of it is not finite."""
    return StepOutcome(step, norm_of(terms) if finite else float("nan"), finite, scale)
