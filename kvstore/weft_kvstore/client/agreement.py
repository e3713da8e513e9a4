"""What all shards are asked for and agree on: barriers, commits of steps, changes of hyper-parameters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from weft_kvstore.arrays import norm_of
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.client.operation import Answer, Operation
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.sharding import Routing
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import (
    MAX_RUNS,
    NOBODY,
    Barrier,
    Commit,
    Done,
    Hyper,
    HyperAnswer,
    HyperDecide,
    HyperDecided,
    HyperSettle,
    Measure,
    Measured,
    Message,
)

ShardMessages = Sequence[tuple[int, Message]]
"""Messages to send, each with its shard."""

# --- A barrier: what a slot sends when it has pushed all of a step ----------------------------------------------------


class BarrierOperation(Operation):
    """A barrier; `nothing` are the indices of keys that the slot has nothing for.

    Where steps are committed (`commits`), every shard measures the step's gradient. Once all have, the outcome, which
    is the result, is sent to all of them. A shard first answers its barrier messages, then sends its measurement, then
    acknowledges the commit; what it has not answered is sent again on a new connection."""

    is_request = True

    def __init__(self, future: Future[Any], step: int, nothing: list[int], *, commits: bool) -> None:
        super().__init__(future)
        self.step = self.ends_step = step
        self.reads = nothing
        self._commits = commits
        self._shards = 0
        self._measured: dict[int, Measured] = {}
        self._outcome: StepOutcome | None = None

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        self._shards = routing.shards
        return dict.fromkeys(range(routing.shards), 1)

    def ask(self, shard: int) -> list[Message]:
        if self._outcome is not None:
            self.pending[shard] = 1
            return [self._commit(self._outcome)]
        if shard in self._measured:
            return []
        key_indices = self.reads
        messages: list[Message] = [
            Barrier(self.number, self.step, list(key_indices[begin : begin + MAX_RUNS]))
            for begin in range(0, max(len(key_indices), 1), MAX_RUNS)
        ]
        self.pending[shard] = len(messages) + 2 * self._commits
        return [*messages, Measure(self.number, self.step)] if self._commits else messages

    def answered(self, shard: int, message: Answer) -> ShardMessages:
        if isinstance(message, Done):
            self.received(shard)
            return ()
        if not isinstance(message, Measured) or not self._commits:
            return super().answered(shard, message)
        if shard in self._measured:
            raise ProtocolError(f"Measured.request: {self.number}, {self} has this shard's measurement")
        other = next(iter(self._measured.values()), message)
        if (other.scale, other.good) != (message.scale, message.good):
            mine, its = f"{message.scale} for {message.good} steps", f"{other.scale} for {other.good}"
            raise ProtocolError(f"Measured.scale: {mine}, another shard has {its}")
        self._measured[shard] = message
        self.received(shard)
        if len(self._measured) < self._shards:
            return ()
        finite = all(one.finite for one in self._measured.values())
        norm = norm_of([term for one in self._measured.values() for term in one.squares]) if finite else float("nan")
        self._outcome = outcome = StepOutcome(self.step, norm, finite, message.scale, message.good)
        return [(shard, self._commit(outcome)) for shard in range(self._shards)]

    def result(self) -> StepOutcome | None:
        return self._outcome

    def _commit(self, outcome: StepOutcome) -> Commit:
        return Commit(self.number, self.step, outcome.norm, int(outcome.finite))

    def __str__(self) -> str:
        return f"barrier{' and commit' if self._commits else ''} of step {self.step}"


# --- A change of hyper-parameters: every shard holds the proposal, shard 0 decides, the others are told the decision --
# Phase  | Sent                         | Next, once
# -------|------------------------------|------------------------------------------------------------------------
# FIRST  | `hyper` to shard 0           | it holds the proposal: of several proposals one goes on
# REST   | `hyper` to the others        | all of them hold the proposal
# DECIDE | `hyper-decide` to shard 0    | it has decided: from here on nothing can stop the change
# SETTLE | `hyper-settle` to the others | all of them know


TRIES: Final = 10
"""How many steps are proposed where any will do. Slots train meanwhile, so each try is twice as far ahead."""


@dataclass(frozen=True, slots=True)
class Change:
    """Numbers that are to hold from a step on, or with None from the first that is possible: of the key at `key_index`,
    called `key`, or with None of the whole job."""

    numbers: Mapping[str, float]
    step: int | None
    key_index: int | None
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


class HyperOperation(Operation):
    """A change of hyper-parameters; the result is the step from which they hold. `_unanswered` are the messages that
    shards have not answered, which are sent again on a new connection."""

    is_request = True

    def __init__(self, future: Future[Any], change: Change, draw: Callable[[], bytes]) -> None:
        """`draw` gives 16 bytes that no other proposal has."""
        super().__init__(future)
        self._change = change
        self._draw = draw
        self._shards = 0
        self._unanswered: dict[int, Message] = {}
        self._phase = Phase.FIRST
        self._proposal = b""
        self._step = change.step or 0
        self._tries = 0

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        self._shards = routing.shards
        self._propose()
        return dict.fromkeys(range(routing.shards), 1)

    def ask(self, shard: int) -> list[Message]:
        return [self._unanswered[shard]] if shard in self._unanswered else []

    def answered(self, shard: int, message: Answer) -> ShardMessages:
        if isinstance(message, HyperAnswer | HyperDecided) and message.proposal != self._proposal:
            return ()  # It was withdrawn meanwhile.
        expected = {Phase.DECIDE: HyperDecided, Phase.SETTLE: Done}.get(self._phase, HyperAnswer)
        if self._unanswered.pop(shard, None) is None or not isinstance(message, expected):
            raise ProtocolError(f"{type(message).__name__}.request: {self.number}, {self} is at {self._phase.value}")
        if isinstance(message, HyperDecided):
            if not message.version:
                self._phase = Phase.REST
                raise StoreRefusedError("it took too long and was given up; try again")
            self._phase = Phase.SETTLE
            self.received(0)
            return self._send_to_others(HyperSettle(self.number, self._proposal, message.version))
        if not isinstance(message, HyperAnswer):
            self.received(shard)
        elif not message.held:
            return self._refused(message)
        elif not self._unanswered and self._phase is Phase.FIRST and self._shards > 1:
            self._phase = Phase.REST
            return self._send_to_others(self._hyper())
        elif not self._unanswered:
            self._phase = Phase.DECIDE
            self._unanswered = {0: HyperDecide(self.number, self._proposal, 1)}
            return list(self._unanswered.items())
        return ()

    def withdraw(self, shard: int) -> list[Message]:
        """Withdraws the proposal, unless it has been decided."""
        if self._phase not in {Phase.FIRST, Phase.REST}:
            return []
        return [(HyperSettle if shard else HyperDecide)(NOBODY, self._proposal, 0)]

    def result(self) -> int:
        return self._step

    def _propose(self) -> None:
        self._phase, self._proposal = Phase.FIRST, self._draw()
        self._unanswered = {0: self._hyper()}

    def _refused(self, answer: HyperAnswer) -> ShardMessages:
        """Tries a later step, where any will do and one can be had. Raises StoreRefusedError."""
        self._tries += 1
        if self._change.step is not None or answer.step <= self._step or self._tries >= TRIES:
            raise StoreRefusedError(answer.reason)
        withdrawn = [(shard, message) for shard in range(self._shards) for message in self.withdraw(shard)]
        self._step = answer.step + (1 << self._tries >> 1) - 1
        self._propose()
        return [*withdrawn, *self._unanswered.items()]

    def _send_to_others(self, message: Message) -> ShardMessages:
        self._unanswered = dict.fromkeys(range(1, self._shards), message)
        return list(self._unanswered.items())

    def _hyper(self) -> Hyper:
        change = self._change
        key = [] if change.key_index is None else [change.key_index]
        return Hyper(self.number, self._proposal, self._step, key, list(change.numbers), list(change.numbers.values()))

    def __str__(self) -> str:
        return str(self._change)
