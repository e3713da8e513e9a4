"""What a caller has asked of a store, and the operation that it becomes until it ends. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from weft_kvstore.arrays import Array
from weft_kvstore.client.encoding import GradientEncoders
from weft_kvstore.client.plan import KeySet
from weft_kvstore.same_host.peers import GivenArrays
from weft_kvstore.sharding import Routing
from weft_kvstore.wire.codec import ProtocolError
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
from weft_kvstore.wire.out_run import OutRun
from weft_kvstore.wire.runs import ValueRun

# --- What a caller has asked of a store, once it was checked ----------------------------------------------------------
# `place` is the key's place in the description.


CALLS: Final = {
    PayloadKind.GRADIENT: ("push", "step"),
    PayloadKind.VALUE: ("set", "version"),
    PayloadKind.RESTORED: ("restore", "version"),
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A gradient of a step, or a value to be set at a version, of some rows of a table."""

    payload_kind: PayloadKind
    name: str
    place: int
    step: int
    priority: int
    rows: bool = False

    def __str__(self) -> str:
        call, step = CALLS[self.payload_kind]
        return f"{call} of {'rows of ' if self.rows else ''}key {self.name!r}, {step} {self.step}"


class Gives(Enum):
    """What a pull of keys ends with: the one key's value, its state by name, a list of values, `Pulled`, or the value
    of one key as its shard has it, however it travels else."""

    VALUE = "value"
    STATE = "state"
    VALUES = "values"
    VERSIONS = "versions"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class AskedKeys:
    """Values of some keys at a version, or the rule's state of one: `names` are its arrays, None for the value."""

    keys: KeySet
    version: int
    names: tuple[str, ...] | None
    reading: Reading
    gives: Gives

    @property
    def array_count(self) -> int:
        """Arrays of each key."""
        return 1 if self.names is None else len(self.names)

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        exactly = " exactly" if self.reading is Reading.EXACT else ""
        return f"{what} of {self.keys}, version {self.version}{exactly}"


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows of a table at a version, or the rule's state: `names` are its arrays, None for the value itself."""

    name: str
    place: int
    version: int
    names: tuple[str, ...] | None
    settled: bool
    priority: int
    rows: bool = False

    @property
    def reading(self) -> Reading:
        return Reading.SETTLED if self.settled else Reading.OWN

    @property
    def array_count(self) -> int:
        return 1 if self.names is None else len(self.names)

    def named(self, arrays: Sequence[Array]) -> Array | Mapping[str, Array]:
        """The arrays, as the caller gets them."""
        return arrays[0] if self.names is None else dict(zip(self.names, arrays, strict=True))

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of {'rows of ' if self.rows else ''}key {self.name!r}, version {self.version}"


# --- What a client has begun and not ended ----------------------------------------------------------------------------
# Pure; the future belongs to the hands.
#
# Pushes and pulls of keys are in `keys`, those of rows in `row_operation`; barriers and commits in `agreement`.


SentRun: TypeAlias = "OutRun[SentEntry, Operation]"


class Link(Protocol):
    """What an operation uses of the link to a shard."""

    shard: int

    def put(self, runs: Iterable[SentRun]) -> None:
        """Queues these to be sent."""

    def withdraw(self, runs: Iterable[SentRun]) -> None:
        """These need not be sent any more."""

    def say(self, message: Message) -> None:
        """Sends a control message."""

    def ask(self, request: AskOperation) -> None:
        """Begins a request: it is made while there is a connection, and again on each new one."""

    def forget(self, request: AskOperation) -> None:
        """The request is not made again."""

    new_pulls: list[PullOperation]
    """What is to be asked for with the next messages, together."""


class Operation(ABC):
    """`pending[shard]` counts what is missing from each shard; the operation ends when nothing is.

    `because` is what shards said that it waits for. `number` is the request's number on the wire.
    """

    priority = 0
    """The call's own: higher goes first. Set before it is begun."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future
        self.number = 0
        self.pending: dict[int, int] = {}
        self.because: dict[int, str] = {}
        self.ended = False

    sets: Sequence[int] = ()
    """The keys of which it sets a value, by place."""

    asks_of: Sequence[int] = ()
    """The keys of which it asks or says something, by place: it comes behind what was set of them."""

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

    def prepare(self, routing: Routing) -> dict[int, int]:
        self.runs = self.cut(routing)
        return {shard: sum([run.count for run in runs]) for shard, runs in self.runs.items()}

    @abstractmethod
    def cut(self, routing: Routing) -> dict[int, list[SentRun]]:
        """All its parts by shard. Raises MemoryError, and StoreRefusedError for what cannot be begun now."""

    def begin(self, link: Link) -> None:
        link.put(self.runs[link.shard])

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

    def agreed(self, shard: int, message: HyperAnswer | HyperDecided) -> bool:
        """The shard says what it thinks of a change of hyper-parameters. True if nothing is missing. Raises
        ProtocolError, and StoreRefusedError where there will be none."""
        raise ProtocolError(f"{type(message).__name__}.request: {self.number}, {self} changes nothing")

    def write(self, shard: int, came: ValueRun) -> int:
        """Copies slices, or chunks, into place, unless the shard has put them into the places of their keys by itself.
        Returns how many of them were new. Raises ProtocolError where they are not what was asked for."""
        raise ProtocolError(f"Values.request: {self.number}, {self} asks for none")


class PullOperation(AskOperation):
    """Values, or the rule's state, on their way. `asked` says of which version, and how exactly."""

    asked: Any

    @abstractmethod
    def asks(self, shard: int) -> list[tuple[int, int, int]]:
        """What it wants of a shard, once it was prepared: (bucket, first slice, slices); at most 4,096 of them."""

    def chunks(self, shard: int) -> int:
        """How many chunks of ids a shard gets."""
        return 0

    @property
    def may_be_compressed(self) -> bool:
        """Whether its values may come encoded, where the description says how."""
        return False

    in_place = False
    """Whether it wants values in the places of their keys, where the shard can put them there."""

    def make(self, link: Link) -> None:
        link.new_pulls.append(self)

    def give_up(self, link: Link) -> None:
        super().give_up(link)
        link.say(Cancel([self.number]))

    def check_version(self, version: int) -> None:
        """Raises ProtocolError for a version that was not asked for."""
        asked = self.asked
        if version < asked.version or (version > asked.version and asked.reading is Reading.EXACT):
            raise ProtocolError(f"Values.version: {version}, {self} was asked for")

    def __str__(self) -> str:
        return str(self.asked)
