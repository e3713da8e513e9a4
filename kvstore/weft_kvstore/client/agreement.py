"""What all shards are asked for and agree on: barriers, commits of steps, changes of hyper-parameters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from weft_kvstore.arrays import norm_of
from weft_kvstore.client.operation import AskOperation, Link
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.sharding import Routing
from weft_kvstore.step_outcome import LossScale, StepOutcome
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import (
    MAX_RUNS,
    NOBODY,
    Barrier,
    Cancel,
    Commit,
    Hyper,
    HyperAnswer,
    HyperDecide,
    HyperDecided,
    HyperSettle,
    Measure,
    Measured,
    Message,
)

# --- A barrier: what a slot says when it has sent all of a step -------------------------------------------------------


class BarrierOperation(AskOperation):
    """A barrier; `nothing` are the places of keys that the slot has nothing for."""

    def __init__(self, future: Future[Any], step: int, nothing: list[int]) -> None:
        super().__init__(future)
        self.step = self.ends_step = step
        self.nothing = self.asks_of = nothing
        self.parts = max(-(-len(nothing) // MAX_RUNS), 1)
        """How many messages it takes."""

    def prepare(self, routing: Routing) -> dict[int, int]:
        return dict.fromkeys(range(routing.shards), self.parts)

    def make(self, link: Link) -> None:
        self.pending[link.shard] = self.parts
        self.declare(link)

    def declare(self, link: Link) -> None:
        """Says what the slot has nothing for."""
        for begin in range(0, self.parts * MAX_RUNS, MAX_RUNS):
            link.say(Barrier(self.number, self.step, self.nothing[begin : begin + MAX_RUNS]))

    def done(self, shard: int) -> bool:
        return self.settle(shard)

    def __str__(self) -> str:
        return f"barrier of step {self.step}"


# --- A barrier where steps are committed: every shard is asked what the step amounts to, and told what all do ---------


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
        if (other.scale, other.good) != (message.scale, message.good):
            mine, its = f"{message.scale} for {message.good} steps", f"{other.scale} for {other.good}"
            raise ProtocolError(f"Measured.scale: {mine}, another shard has {its}")
        self._measured[shard] = message
        self.settle(shard)
        if len(self._measured) == len(self._links):
            terms = [term for one in self._measured.values() for term in one.squares]
            finite = all(one.finite for one in self._measured.values())
            scale = LossScale(message.scale, message.good)
            self._outcome = outcome_of(self.step, terms, finite=finite, scale=scale)
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


def outcome_of(step: int, terms: list[float], *, finite: bool, scale: LossScale) -> StepOutcome:
    """What a step is whose merged gradient has squares of which `terms` are the exact sum; without a norm where a part
    of it is not finite."""
    return StepOutcome(step, norm_of(terms) if finite else float("nan"), finite, scale.scale, scale.good)


# --- A change of hyper-parameters on its way: every shard holds it, shard 0 decides, the others hear of it ------------
# Phase  | Said                         | Next, once
# -------|------------------------------|------------------------------------------------------------------------
# FIRST  | `hyper` to shard 0           | it holds it: so of several proposals one goes on
# REST   | `hyper` to the others        | all of them hold it
# DECIDE | `hyper-decide` to shard 0    | it has decided: from here on nothing can stop the change
# SETTLE | `hyper-settle` to the others | all of them know


TRIES: Final = 10
"""Steps that are proposed where any will do. Slots go on meanwhile, so each further try looks twice as far ahead."""


@dataclass(frozen=True, slots=True)
class Change:
    """Numbers that are to hold from a step on, or with None from the first that is possible: of the key at `place`,
    called `key`, or with None of the whole job."""

    numbers: Mapping[str, float]
    step: int | None
    place: int | None
    key: str | None

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} to {number:g}" for name, number in self.numbers.items())
        of = "all keys" if self.key is None else f"key {self.key!r}"
        return f"change of {numbers} for {of}, step {'any' if self.step is None else self.step}"


class Phase(Enum):
    FIRST = "first"
    REST = "rest"
    DECIDE = "decide"
    SETTLE = "settle"


class HyperOperation(AskOperation):
    """It ends with the step from which the numbers hold. `_due` is what each shard has not answered yet; it is said
    again on a new connection."""

    def __init__(self, future: Future[Any], change: Change, draw: Callable[[], bytes]) -> None:
        """`draw` gives 16 bytes that no other proposal has."""
        super().__init__(future)
        self.change = change
        self._draw = draw
        self._links: dict[int, Link] = {}
        self._due: dict[int, Message] = {}
        self._phase = Phase.FIRST
        self._proposal = b""
        self._step = change.step or 0
        self._version = 0
        self._tries = 0

    def prepare(self, routing: Routing) -> dict[int, int]:
        return dict.fromkeys(range(routing.shards), 1)

    def begin(self, link: Link) -> None:
        self._links[link.shard] = link
        if not link.shard:
            self._proposal = self._draw()
            self._due[0] = self._hyper()
        super().begin(link)

    def make(self, link: Link) -> None:
        if link.shard in self._due:
            link.say(self._due[link.shard])

    def agreed(self, shard: int, message: HyperAnswer | HyperDecided) -> bool:
        if message.proposal != self._proposal:
            return False  # It was withdrawn meanwhile.
        expected = HyperDecided if self._phase is Phase.DECIDE else HyperAnswer
        if self._due.pop(shard, None) is None or not isinstance(message, expected):
            raise ProtocolError(f"{type(message).__name__}.request: {self.number}, {self} is at {self._phase.value}")
        if isinstance(message, HyperDecided):
            return self._decided(message.version)
        if not message.held:
            self._refused(message)
        elif not self._due:
            self._go_on()
        return False

    def done(self, shard: int) -> bool:
        if self._phase is not Phase.SETTLE or self._due.pop(shard, None) is None:
            raise ProtocolError(f"Done.request: {self.number}, {self} is at {self._phase.value}")
        return self.settle(shard)

    def give_up(self, link: Link) -> None:
        super().give_up(link)
        if self._proposal and self._phase in {Phase.FIRST, Phase.REST}:  # Later shard 0 may have decided.
            link.say(self._withdrawal(link.shard))

    def result(self) -> int:
        return self._step

    def let_go(self) -> None:
        self._links = {}
        self._due = {}

    def _go_on(self) -> None:
        """All that were asked hold it."""
        if self._phase is Phase.FIRST and len(self._links) > 1:
            self._phase = Phase.REST
            for shard in self._others:
                self._say(shard, self._hyper())
        else:
            self._phase = Phase.DECIDE
            self._say(0, HyperDecide(self.number, self._proposal, 1))

    def _decided(self, version: int) -> bool:
        if not version:
            self._withdraw()
            raise StoreRefusedError("it took too long and was given up; try again")
        self._phase, self._version = Phase.SETTLE, version
        for shard in self._others:
            self._say(shard, HyperSettle(self.number, self._proposal, version))
        return self.settle(0)

    def _refused(self, answer: HyperAnswer) -> None:
        """Tries a later step, where any will do and one can be had. Raises StoreRefusedError."""
        self._withdraw()
        self._tries += 1
        if self.change.step is not None or answer.step <= self._step or self._tries >= TRIES:
            raise StoreRefusedError(answer.reason)
        self._phase, self._step = Phase.FIRST, answer.step + (1 << self._tries >> 1) - 1
        self._proposal = self._draw()
        self._say(0, self._hyper())

    def _withdraw(self) -> None:
        """Nobody has to hold it any more."""
        self._due = {}
        for shard, link in self._links.items():
            link.say(self._withdrawal(shard))

    def _withdrawal(self, shard: int) -> Message:
        if not shard:
            return HyperDecide(NOBODY, self._proposal, 0)
        return HyperSettle(NOBODY, self._proposal, 0)

    @property
    def _others(self) -> list[int]:
        return [shard for shard in self._links if shard]

    def _say(self, shard: int, message: Message) -> None:
        self._due[shard] = message
        self._links[shard].say(message)

    def _hyper(self) -> Hyper:
        change = self.change
        key = [] if change.place is None else [change.place]
        return Hyper(self.number, self._proposal, self._step, key, list(change.numbers), list(change.numbers.values()))

    def __str__(self) -> str:
        return str(self.change)
