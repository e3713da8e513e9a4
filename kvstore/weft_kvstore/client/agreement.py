"""What all shards are told: barriers, commits of steps, changes of hyper-parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_kvstore.arrays import norm_of
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.client.operation import Answer, Operation
from weft_kvstore.sharding import Routing
from weft_kvstore.store import StepOutcome
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    Barrier,
    Commit,
    Hyper,
    Measure,
    Measured,
    Message,
)

# --- A barrier: what a slot sends when it has pushed all of a step ----------------------------------------------------


class BarrierOperation(Operation):
    """A barrier; `nothing` are the indices of keys that the slot has nothing for.

    Where steps are committed (`commits`), every shard measures the step's gradient. Once all have, the outcome, which
    is the result, is sent to all of them. A new connection to a shard asks for all of it again, and once the
    outcome is known for the commit alone."""

    is_request = True
    ends_step = True

    def __init__(self, step: int, nothing: list[int], *, commits: bool) -> None:
        super().__init__()
        self.step = step
        self.reads = nothing
        self._commits = commits
        self._shards = 0
        self._measured: dict[int, Measured] = {}
        self._outcome: StepOutcome | None = None

    def prepare(self, routing: Routing, encoders: GradientEncoders) -> dict[int, int]:
        self._shards, self._encoders = routing.shards, encoders
        return super().prepare(routing, encoders)

    def ask(self, shard: int) -> list[Message]:
        if self._outcome is not None:
            self.pending[shard] = 1
            return [self._commit(self._outcome)]
        self._measured.pop(shard, None)  # It says it again.
        key_indices = self.reads
        messages: list[Message] = [
            Barrier(self.number, self.step, list(key_indices[begin : begin + MAX_ENTRIES]))
            for begin in range(0, max(len(key_indices), 1), MAX_ENTRIES)
        ]
        self.pending[shard] = len(messages) + 2 * self._commits
        return [*messages, Measure(self.number, self.step)] if self._commits else messages

    def answered(self, shard: int, message: Answer) -> Sequence[tuple[int, Message]]:
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
        if self._outcome is not None:
            self._encoders.follow(self._outcome)
        self._encoders.step_ended(self.step)
        return self._outcome

    def _commit(self, outcome: StepOutcome) -> Commit:
        return Commit(self.number, self.step, outcome.norm, outcome.finite)

    def __str__(self) -> str:
        return f"barrier{' and commit' if self._commits else ''} of step {self.step}"


# --- A change of hyper-parameters -------------------------------------------------------------------------------------


class HyperOperation(Operation):
    """Numbers hold from a step on: of the key at `key_index`, called `key`, or with None of the whole job. The result
    is the step.

    It leaves before the slot's pushes of the step, as a control message does, and so it comes before them: on a new
    connection too, even if its deadline has passed, for these pushes may still come."""

    is_request = True
    outlives_failure = True

    def __init__(self, step: int, numbers: Mapping[str, float], key: str | None, key_index: int | None) -> None:
        super().__init__()
        self._step, self._numbers, self._key = step, numbers, key
        self._key_indices = [] if key_index is None else [key_index]

    def ask(self, shard: int) -> list[Message]:
        return [Hyper(self.number, self._step, self._key_indices, list(self._numbers), list(self._numbers.values()))]

    def result(self) -> int:
        return self._step

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} to {number:g}" for name, number in self._numbers.items())
        return f"change of {numbers} for {'all keys' if self._key is None else f'key {self._key!r}'}, step {self._step}"
