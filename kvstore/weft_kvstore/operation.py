"""What a client has begun and not ended: pushes, pulls, barriers. Pure; the future belongs to the hands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

import numpy as np

from weft_kvstore.buffers import bytes_of
from weft_kvstore.calls import Asked, Sent
from weft_kvstore.cargo import SentEntry
from weft_kvstore.codec import ProtocolError
from weft_kvstore.messages import MAX_RUNS, Barrier, Cancel, Measured, Message
from weft_kvstore.outbox import OutSlice
from weft_kvstore.routing import KeySlices, Routing
from weft_kvstore.store import Array

SentSlice: TypeAlias = "OutSlice[SentEntry, Operation]"


class Link(Protocol):
    """What an operation uses of the link to a shard."""

    shard: int

    def put(self, slices: Iterable[SentSlice]) -> None:
        """Queues these to be sent."""

    def withdraw(self, slices: Iterable[SentSlice]) -> None:
        """These need not be sent any more."""

    def say(self, message: Message) -> None:
        """Sends a control message."""

    def ask(self, request: Request) -> None:
        """Begins a request: it is made while there is a connection, and again on each new one."""

    def forget(self, request: Request) -> None:
        """The request is not made again."""

    def pull(self, operation: PullOperation) -> None:
        """Asks for what a pull wants, together with others."""


class Operation(ABC):
    """`pending[shard]` counts what is missing from each shard; the operation ends when nothing is.

    `because` is what shards said that it waits for. `number` is the request's number on the wire.
    """

    def __init__(self, future: Future[Any]) -> None:
        self.future = future
        self.number = 0
        self.pending: dict[int, int] = {}
        self.because: dict[int, str] = {}
        self.ended = False

    @abstractmethod
    def prepare(self, routing: Routing) -> dict[int, int]:
        """Makes what is to be sent. How many parts each shard has of it, where it has some. Raises MemoryError."""

    @abstractmethod
    def begin(self, link: Link) -> None:
        """Hands the link what its shard has to get."""

    @abstractmethod
    def give_up(self, link: Link) -> None:
        """It has ended without this shard's parts."""

    @property
    def rows_pushed(self) -> int:
        """Rows of a table that it sends as a gradient or a value."""
        return 0

    @property
    def rows_pulled(self) -> int:
        """Distinct rows of a table that it asks for."""
        return 0

    def delivered(self, shard: int) -> bool:
        """A slice that it sent has arrived. True if that was the last thing that was missing."""
        return False

    def settle(self, shard: int, count: int = 1) -> bool:
        """So many of a shard's parts have come. True if that was the last of all."""
        left = self.pending.get(shard, 0) - count
        if left > 0:
            self.pending[shard] = left
        else:
            self.pending.pop(shard, None)
            self.because.pop(shard, None)
        return not self.pending

    def result(self) -> Any:
        """What the future ends with."""
        return None

    @abstractmethod
    def let_go(self) -> None:
        """It has ended: its parts, which know it, are forgotten, so that its arrays go at once and not when the
        collector of cycles comes round."""

    @abstractmethod
    def __str__(self) -> str:
        """What an error calls it."""


class SendOperation(Operation):
    """A gradient, or a value to set, on its way. `slices` are all its parts, by shard, once it was prepared."""

    def __init__(self, future: Future[Any], sent: Sent) -> None:
        super().__init__(future)
        self.sent = sent
        self.slices: dict[int, list[SentSlice]] = {}

    def prepare(self, routing: Routing) -> dict[int, int]:
        self.slices = self.cut(routing)
        return {shard: len(slices) for shard, slices in self.slices.items()}

    @abstractmethod
    def cut(self, routing: Routing) -> dict[int, list[SentSlice]]:
        """All its parts by shard. Raises MemoryError."""

    def begin(self, link: Link) -> None:
        link.put(self.slices[link.shard])

    def give_up(self, link: Link) -> None:
        link.withdraw(self.slices[link.shard])

    def delivered(self, shard: int) -> bool:
        return not self.ended and self.settle(shard)

    def let_go(self) -> None:
        self.slices = {}

    def __str__(self) -> str:
        return str(self.sent)


class PushOperation(SendOperation):
    """All of a key; `array` is the caller's and kept until the end."""

    def __init__(self, future: Future[Any], sent: Sent, array: Array) -> None:
        super().__init__(future, sent)
        self.array = array

    def cut(self, routing: Routing) -> dict[int, list[SentSlice]]:
        sent = self.sent
        cut = routing.cuts[sent.place]
        base = bytes_of(self.array)
        entry = SentEntry(sent.cargo, self.number, sent.place, sent.step, 0)
        return {
            shard: [
                OutSlice(entry, index, base, cut.start(index), cut.start(index + 1), priority=sent.priority, owner=self)
                for index in run
            ]
            for shard, run in routing.runs[sent.place].items()
        }


class Request(Operation):
    """What a shard answers: it is asked again on every new connection until it has."""

    def begin(self, link: Link) -> None:
        link.ask(self)

    def give_up(self, link: Link) -> None:
        link.forget(self)

    def let_go(self) -> None:
        pass  # A request has no parts, unless it sends ids.

    @abstractmethod
    def make(self, link: Link) -> None:
        """Asks the shard, for the first time or anew."""

    def done(self, shard: int) -> bool:
        """The shard has taken in one of its messages. True if nothing is missing any more. Raises ProtocolError."""
        raise ProtocolError(f"Done.request: {self.number}, {self} ends with values")

    def measured(self, shard: int, message: Measured) -> bool:
        """The shard says what its part of a step amounts to. True if nothing is missing. Raises ProtocolError."""
        raise ProtocolError(f"Measured.request: {self.number}, {self} commits nothing")

    def write(self, shard: int, array: int, version: int, run: range, payload: memoryview) -> int:
        """Copies parts `run` into place. Returns how many of them were new. Raises ProtocolError."""
        raise ProtocolError(f"Values.request: {self.number}, {self} asks for none")


class PullOperation(Request):
    """Values, or the rule's state, on their way."""

    def __init__(self, future: Future[Any], asked: Asked) -> None:
        super().__init__(future)
        self.asked = asked
        self._seen: set[tuple[int, int, int]] = set()

    def make(self, link: Link) -> None:
        link.pull(self)

    def give_up(self, link: Link) -> None:
        super().give_up(link)
        link.say(Cancel([self.number]))

    def chunks(self, shard: int) -> int:
        """How many chunks of ids a shard gets."""
        return 0

    def write(self, shard: int, array: int, version: int, run: range, payload: memoryview) -> int:
        if version < self.asked.version:
            raise ProtocolError(f"Values.version: {version}, {self} was asked for")
        self.copy(shard, array, run, payload)
        found = {(shard, array, index) for index in run} - self._seen
        self._seen |= found
        return len(found)

    @abstractmethod
    def copy(self, shard: int, array: int, run: range, payload: memoryview) -> None:
        """Copies adjacent parts into place. Raises ProtocolError where they are not of this pull."""

    def __str__(self) -> str:
        return str(self.asked)


class KeyPull(PullOperation):
    """All of a key."""

    def __init__(
        self, future: Future[Any], asked: Asked, *, cut: KeySlices, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        super().__init__(future, asked)
        self._cut = cut
        self._arrays: list[Array] = [np.empty(shape, dtype) for _ in range(asked.array_count)]
        self._bytes = [bytes_of(array) for array in self._arrays]
        self._runs: Mapping[int, range] = {}

    def prepare(self, routing: Routing) -> dict[int, int]:
        arrays = self.asked.array_count
        self._runs = routing.runs[self.asked.place]
        return {shard: len(run) * arrays for shard, run in self._runs.items() if arrays}

    def copy(self, shard: int, array: int, run: range, payload: memoryview) -> None:
        own = self._runs.get(shard, range(0))
        if array >= len(self._bytes) or run.start < own.start or run.stop > own.stop:
            raise ProtocolError(
                f"Values.first: slices {run.start} to {run.stop - 1} of array {array}; of key {self.asked.name!r} the "
                f"shard has slices {own.start} to {own.stop - 1} and {len(self._bytes)} arrays"
            )
        start, stop = self._cut.start(run.start), self._cut.start(run.stop)
        if stop - start != payload.nbytes:
            told = stop - start
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, the slices of {self.asked.name!r} have {told}")
        self._bytes[array][start:stop] = payload

    def result(self) -> Any:
        return self.asked.named(self._arrays)


class BarrierOperation(Request):
    """A barrier; `nothing` are the places of keys that the slot has nothing for."""

    def __init__(self, future: Future[Any], step: int, nothing: list[int]) -> None:
        super().__init__(future)
        self.step = step
        self.nothing = nothing

    @property
    def parts(self) -> int:
        """How many messages it takes."""
        return max(-(-len(self.nothing) // MAX_RUNS), 1)

    def prepare(self, routing: Routing) -> dict[int, int]:
        return dict.fromkeys(range(routing.shards), self.parts)

    def make(self, link: Link) -> None:
        self.pending[link.shard] = self.parts
        self.declare(link)

    def declare(self, link: Link) -> None:
        """Says what the slot has nothing for."""
        for begin in range(0, max(len(self.nothing), 1), MAX_RUNS):
            link.say(Barrier(self.number, self.step, self.nothing[begin : begin + MAX_RUNS]))

    def done(self, shard: int) -> bool:
        return self.settle(shard)

    def __str__(self) -> str:
        return f"barrier of step {self.step}"
