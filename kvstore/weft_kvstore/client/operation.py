"""The operation that a call of a store becomes until it ends; the order among operations:
requests wait for sets before them, reads of several keys see one version. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.connection import Connection, LinkState
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.errors import StorePassedError, StoreTimeoutError
from weft_kvstore.futures import Driver, StoreFuture, on_end
from weft_kvstore.same_host.layout import GivenArrays
from weft_kvstore.sharding import Routing
from weft_kvstore.store import Pulled
from weft_kvstore.wire.codec import ProtocolError, ValueRun
from weft_kvstore.wire.messages import (
    Cancel,
    HyperAnswer,
    HyperDecided,
    Measured,
    Message,
    PayloadKind,
    Reading,
    SentEntry,
)
from weft_kvstore.wire.outbox import Outbox, OutRun

# --- What calls that send are named, and what pulls end with ----------------------------------------------------------


CALLS: Final = {
    PayloadKind.GRADIENT: ("push", "step"),
    PayloadKind.VALUE: ("set", "version"),
    PayloadKind.RESTORED: ("restore", "version"),
}


class Gives(Enum):
    """What a pull of keys ends with: the one key's value, its state by name, a list of values, `Pulled`, or the value
    of one key as its shard has it, however it travels else."""

    VALUE = "value"
    STATE = "state"
    VALUES = "values"
    VERSIONS = "versions"
    KEPT = "kept"


# --- What a client has begun and not ended ----------------------------------------------------------------------------
# Pure; whoever does the I/O ends the future.
#
# Pushes and pulls of keys are in `keys`, those of rows in `row_operation`; barriers and commits in `agreement`.


SentRun: TypeAlias = "OutRun[SentEntry, Operation]"


class Link(Protocol):
    """What an operation uses of the link to a shard."""

    shard: int
    connection: Connection
    outbox: Outbox[SentEntry, Operation]

    def withdraw(self, runs: Iterable[SentRun]) -> None:
        """These need not be sent any more."""

    def say(self, message: Message) -> None:
        """Sends a control message."""

    requests: dict[int, AskOperation]
    """What is not answered, by number."""

    def forget(self, request: AskOperation) -> None:
        """The request is not made again."""

    new_pulls: list[PullOperation]
    """What is to be asked for with the next messages, together."""


class Operation(ABC):
    """`pending[shard]` counts what is missing from each shard; the operation ends when nothing is.

    `because` is what shards said that it waits for. `number` is the request's number on the wire. All three are set
    where it is begun.
    """

    pending: dict[int, int]
    because: dict[int, str]

    priority = 0
    """The call's own: higher goes first. Set before it is begun."""

    number = 0
    ended = False

    may_wait = False
    """Whether it is small, and may be begun with the next call: they share a message."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    sets: Sequence[int] = ()
    """The keys of which it sets a value, by place."""

    asks_of: Sequence[int] = ()
    """The keys of which it asks or says something, by place: it comes behind what was set of them."""

    ends_step: int | None = None
    """The step that the slot is through with once this has ended."""

    rows_pushed = 0
    """Rows of a table that it sends as a gradient or a value; known once it was prepared."""

    rows_pulled = 0
    """Distinct rows of a table that it asks for."""

    def hold(self, places: Collection[int]) -> bool:
        """What it says of these keys has to wait. True where the rest is begun, False where all of it waits."""
        return False

    def go_on(self, places: Sequence[int], links: Sequence[Link], *, whole: bool) -> None:
        """These keys, at least one, have been waited for; `whole`: there are no others."""
        if whole:
            for link in links:
                self.begin(link)

    def use(self, encoders: GradientEncoders) -> None:  # noqa: B027  # most send nothing that is encoded
        """The slot's, before anything else: for what travels encoded."""

    @abstractmethod
    def prepare(self, routing: Routing) -> dict[int, int]:
        """Makes what is to be sent. How many parts each shard has of it, where it has some. Raises MemoryError, and
        StoreRefusedError for what cannot be begun now."""

    @abstractmethod
    def begin(self, link: Link) -> None:
        """Hands the link what its shard has to get."""

    @abstractmethod
    def give_up(self, link: Link) -> None:
        """It has ended without this shard's parts."""

    def look(self, memory: GivenArrays) -> None:  # noqa: B027  # most have nothing there
        """Before it is prepared: finds out whether its arrays are the store's own."""

    def delivered(self, shard: int, count: int) -> bool:
        """So many slices that it sent have arrived. True if they were the last thing that was missing."""
        return False

    def resent(self, shard: int, run: SentRun) -> None:
        """Part of a run that it sent waits anew, for the connection has broken."""
        raise TypeError(f"{self} sends nothing")

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
    """Gradients, or values to set, on their way. `runs` are all its parts, by shard, once it was prepared."""

    payload_kind: PayloadKind

    def __init__(self, future: Future[Any]) -> None:
        super().__init__(future)
        self.runs: dict[int, list[SentRun]] = {}

    def begin(self, link: Link) -> None:
        for run in self.runs[link.shard]:
            link.outbox.put(run)

    def give_up(self, link: Link) -> None:
        link.withdraw(self.runs[link.shard])

    def delivered(self, shard: int, count: int) -> bool:
        return not self.ended and self.settle(shard, count)

    def resent(self, shard: int, run: SentRun) -> None:
        self.runs[shard].append(run)

    def let_go(self) -> None:
        self.runs = {}


class AskOperation(Operation):
    """What a shard answers: it is asked again on every new connection until it has."""

    def begin(self, link: Link) -> None:
        """It is made while there is a connection, and again on each new one."""
        link.requests[self.number] = self
        if link.connection.state is LinkState.OPEN:
            self.make(link)

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

    def agreed(self, shard: int, message: HyperAnswer | HyperDecided) -> bool:
        """The shard says what it thinks of a change of hyper-parameters. True if nothing is missing. Raises
        ProtocolError, and StoreRefusedError where there will be none."""
        raise ProtocolError(f"{type(message).__name__}.request: {self.number}, {self} changes nothing")

    def write(self, shard: int, came: ValueRun) -> int:
        """Copies slices, or chunks, into place, unless the shard has put them into the places of their keys by itself.
        Returns how many of them were new. Raises ProtocolError where they are not what was asked for."""
        raise ProtocolError(f"Values.request: {self.number}, {self} asks for none")


class PullOperation(AskOperation):
    """Values, or the rule's state, on their way: of which version, and how exactly. `names` are the state's arrays;
    None stands for the value."""

    version: int
    names: tuple[str, ...] | None
    reading: Reading

    @abstractmethod
    def asks(self, shard: int) -> list[tuple[int, int, int, int]]:
        """What it wants of a shard, once it was prepared: (bucket, first slice, slices, chunks of ids that the shard
        gets); at most 4,096 of them."""

    may_be_compressed = False
    """Whether its values may come encoded; known once it was prepared."""

    in_place = False
    """Whether it wants values in the places of their keys, where the shard can put them there."""

    def begin(self, link: Link) -> None:
        link.requests[self.number] = self
        if link.connection.state is LinkState.OPEN:
            link.new_pulls.append(self)

    def make(self, link: Link) -> None:
        link.new_pulls.append(self)

    def give_up(self, link: Link) -> None:
        super().give_up(link)
        link.say(Cancel([self.number]))

    def check_version(self, version: int) -> None:
        """Raises ProtocolError for a version that was not asked for."""
        if version < self.version or (version > self.version and self.reading is Reading.EXACT):
            raise ProtocolError(f"Values.version: {version}, {self} was asked for")


# --- A slot's calls of one key take effect in their order: requests come behind the values that were set before -------
# A request is a message of control, which overtakes data. A pull would miss the value; a word that there is nothing
# would end the step for which the value was meant, and then it would come too late.


@dataclass(slots=True, eq=False)
class _Behind:
    """A request and the links that it is for; of its keys, by place, the numbers of the calls that it comes behind."""

    operation: Operation
    links: Sequence[Link]
    missing: dict[int, set[int]]


class SetsUnderWay:
    """`of_key` has, by the key's place, the numbers of the calls that set it and have not ended; `_before` what comes
    behind each of those calls. Both are empty where none is under way."""

    __slots__ = ("_before", "of_key")

    def __init__(self) -> None:
        self.of_key: dict[int, set[int]] = {}
        self._before: dict[int, list[_Behind]] = {}

    def begin(self, operation: Operation, links: Sequence[Link]) -> None:
        """Begins it: what of it comes behind values that were set, once those calls have ended, however they do."""
        missing = {place: set(before) for place in operation.asks_of if (before := self.of_key.get(place))}
        for place in operation.sets:
            self.of_key.setdefault(place, set()).add(operation.number)
        if missing:
            behind = _Behind(operation, links, missing)
            for number in set().union(*missing.values()):
                self._before.setdefault(number, []).append(behind)
            for link in links:
                operation.because[link.shard] = "it comes behind a value that was set and has not arrived"
        if not missing or operation.hold(missing.keys()):
            for link in links:
                operation.begin(link)

    def ended(self, operation: Operation) -> None:
        """A call has ended: nothing comes behind it any more."""
        for place in operation.sets:
            left = self.of_key.get(place, set())
            left.discard(operation.number)
            if not left:
                self.of_key.pop(place, None)
        for behind in self._before.pop(operation.number, ()):
            if not behind.operation.ended:
                _go_on(behind, operation)

    def close(self) -> None:
        """Nothing goes on any more."""
        self.of_key.clear()
        self._before.clear()


def _go_on(behind: _Behind, before: Operation) -> None:
    free = []
    for place in before.sets:
        left = behind.missing.get(place)
        if left is not None:
            left.discard(before.number)
            if not left:
                free.append(place)
                del behind.missing[place]
    if not behind.missing:
        behind.operation.because.clear()
    if free:
        behind.operation.go_on(free, behind.links, whole=not behind.missing)


# --- Reads several keys at one version while others push --------------------------------------------------------------
# It waits for nothing: it goes on where one of its pulls ends.


TRIES: Final = 8
"""Pulls at one version. The first is at the newest that was seen. Where keys have passed it somebody trains, and each
further one looks a version further ahead, until the keys come there later than the pull does."""


class ReadSource(Protocol):
    """What it uses of a store."""

    def pull_versions(self, keys: Sequence[str], version: int) -> Future[Pulled]: ...

    def pull(self, keys: Sequence[str], version: int, *, exact: bool = False) -> Future[list[Array]]: ...


class ConsistentRead:
    """One such read: `future` ends with the version and the values. `moving` are the numbers of the keys that have
    versions: somebody contributes to them."""

    def __init__(
        self, source: ReadSource, keys: Sequence[str], moving: Sequence[int], driver: Driver | None = None
    ) -> None:
        self.future: StoreFuture[tuple[int, list[Array]]] = StoreFuture(driver)
        self._source = source
        self._keys = keys
        self._moving = np.array(moving, np.int64)
        self._target = 0
        self._tries = 0
        self._overdue: StoreTimeoutError | None = None

    def begin(self) -> None:
        """Looks at what there is."""
        on_end(self._source.pull_versions(self._keys, 0), self._looked)

    def _looked(self, ended: Future[Pulled]) -> None:
        error = ended.exception()
        if error is not None:
            self.future.set_exception(error)
            return
        pulled = ended.result()
        lowest = int(pulled.lowest[self._moving].min(initial=np.iinfo(np.int64).max))
        highest = int(pulled.highest[self._moving].max(initial=0))
        if lowest >= highest:  # All of one version; or there is nothing that has versions.
            self.future.set_result((highest, pulled.values))
        elif self._overdue is not None:
            self.future.set_exception(self._overdue)
        else:
            self._target = highest + self._tries
            self._tries += 1
            on_end(self._source.pull(self._keys, self._target, exact=True), self._came)

    def _came(self, ended: Future[list[Array]]) -> None:
        error = ended.exception()
        if error is None:
            self.future.set_result((self._target, ended.result()))
        elif isinstance(error, StoreTimeoutError):
            self._overdue = error  # Perhaps nobody pushes any more: then all are at one version by now.
            self.begin()
        elif isinstance(error, StorePassedError) and self._tries < TRIES:
            self.begin()
        else:
            self.future.set_exception(error)
