"""The operation that a call of a store becomes until it ends; pushes and pulls of dense keys. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from enum import Enum
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.client.connection import Connection, LinkState
from weft_kvstore.client.encoders import EncodedRun, GradientEncoders
from weft_kvstore.client.plan import KeyPlan, KeySet, PlanRun, Segments, source_of
from weft_kvstore.compression.codecs import PayloadError
from weft_kvstore.compression.slices import SliceEncoder
from weft_kvstore.futures import StoreFuture
from weft_kvstore.same_host.layout import GivenArrays, are_given
from weft_kvstore.sharding import Routing
from weft_kvstore.store import Pulled
from weft_kvstore.wire.codec import ProtocolError, ValueRun
from weft_kvstore.wire.messages import (
    NOBODY,
    Cancel,
    HyperAnswer,
    HyperDecided,
    Measured,
    Message,
    PayloadKind,
    Reading,
    SentEntry,
)
from weft_kvstore.wire.outbox import CALL_PRIORITY, Outbox, OutRun, Source

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
# Pushes and pulls of rows are in `row_operation`, barriers and commits in `agreement`.


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

    `because` is what shards said that it waits for. `number` is the request's number on the wire. It fails at `due_at`.
    All four are set where it is begun.
    """

    pending: dict[int, int]
    because: dict[int, str]

    priority = 0
    """The call's own: higher goes first. Set before it is begun."""

    number = 0
    due_at = 0.0
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

    came_in_parts = False
    """Whether a frame of values brought only some of what a shard has for it."""

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


# --- Pushes and pulls of whole values, of one key or of many at once --------------------------------------------------
# What is the same in every call of the same keys is in their plan; a call does nothing for each slice.


_FIRST = attrgetter("first")


_GRADIENT: Final = PayloadKind.GRADIENT


_BEYOND: Final = np.iinfo(np.int64).max


class KeySend(Operation):
    """What a call sends of all of some keys: gradients of a step, or values at a version. `arrays`, in the keys' order,
    are the caller's and kept until the end. `array`: which of a key's arrays they are, where they are restored."""

    keys: KeySet
    payload_kind: PayloadKind
    step: int
    arrays: Sequence[Array]
    array = 0
    _encoders: GradientEncoders | None = None
    _encoded: Sequence[EncodedRun] = ()
    _begun = False
    _gives_place = False

    def look(self, memory: GivenArrays) -> None:
        self._gives_place = self.payload_kind is _GRADIENT and are_given(
            memory.gradients, self.keys.places, self.arrays
        )

    def use(self, encoders: GradientEncoders) -> None:
        if self.payload_kind is _GRADIENT:
            self._encoders = encoders

    def send_runs(self, plan: KeyPlan) -> dict[int, list[SentRun]]:
        """All of it, by shard. Raises MemoryError, and StoreRefusedError where it cannot be encoded now."""
        arrays, ahead = self.arrays, self.priority * CALL_PRIORITY
        number = NOBODY if self.payload_kind is _GRADIENT else self.number  # Gradients of several calls are one run.
        of_keys: Sequence[SliceEncoder | None] = ()
        encoders = self._encoders if plan.has_pushed else None
        if encoders is not None:
            of_keys = encoders.begin(self.keys, self.step)
            self._begun, self._encoded = True, []
        found: dict[int, list[SentRun]] = {}
        for shard, runs in plan.runs.items():
            mine = found[shard] = []
            for run in runs:
                place = self._gives_place and run.pushed is None
                entry = SentEntry(self.payload_kind, number, run.bucket, self.step, self.array, place)
                source: Source
                if encoders is None or run.pushed is None:
                    bounds, source = run.bounds, source_of(run, arrays)
                else:
                    bounds = run.pushed.begins
                    source = EncodedRun(run, run.pushed, arrays, of_keys, step=self.step, scale=encoders.scale)
                    self._encoded = [*self._encoded, source]
                priorities = run.priorities if run.priorities is None or not ahead else run.priorities - ahead
                mine.append(
                    OutRun(
                        entry,
                        run.first,
                        bounds,
                        source,
                        priority=run.priority - ahead,
                        owner=self,
                        priorities=priorities,
                    )
                )
        return found

    def let_go(self) -> None:
        self.arrays = ()
        if self._begun and self._encoders is not None:
            encoded = any(source.has_begun for source in self._encoded)
            self._encoders.ended(self.keys, self.step, encoded=encoded)
            self._begun, self._encoded = False, ()


class PushOperation(KeySend, SendOperation):
    """All of some keys, sent to their shards."""

    def __init__(
        self, future: Future[Any], payload_kind: PayloadKind, keys: KeySet, step: int, arrays: Sequence[Array]
    ) -> None:
        self.future = future
        self.payload_kind, self.keys, self.step, self.arrays = payload_kind, keys, step, arrays
        self.runs = {}
        if payload_kind is not _GRADIENT:
            self.sets = keys.places
        else:
            self.may_wait = keys.is_small

    def prepare(self, routing: Routing) -> dict[int, int]:
        plan = self.keys.made or self.keys.plan(routing)
        self.runs = self.send_runs(plan)
        return dict(plan.counts)

    def let_go(self) -> None:
        self.runs, self.arrays = {}, ()
        if self._begun:
            super().let_go()

    def __str__(self) -> str:
        call, step = CALLS[self.payload_kind]
        return f"{call} of {self.keys}, {step} {self.step}"


class KeyPull(PullOperation):
    """All of some keys at a version, or the rule's state of one: `names` are its arrays, None for the value. With
    `out`, C-contiguous arrays in their order, values are written there.

    `_arrays` are the values of each array in the keys' order, and the memory they lie in; `_came` has a byte for each
    array and slice of the plan, 1 once it has come; where the caller wants to know them, `_versions` (slices) int64 has
    the version of each.
    """

    _versions: Array | None = None

    def __init__(
        self,
        future: Future[Any],
        keys: KeySet,
        version: int,
        *,
        reading: Reading,
        gives: Gives,
        out: list[Array] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.future = future
        self.keys = keys
        self.asks_of = keys.places
        self.version = version
        self.reading = reading
        self.names = names
        self._gives = gives
        self._out = out
        self._plan: KeyPlan
        self._arrays: list[tuple[list[Array], list[Array]]] = []
        self._segments: Sequence[Segments] = ()
        self._came = bytearray()

    def prepare(self, routing: Routing) -> dict[int, int]:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        plan = self._plan = self.keys.made or self.keys.plan(routing)
        out, count = self._out, 1 if self.names is None else len(self.names)
        if out is not None:
            self._arrays, self._segments = [(out, out)], plan.single.segments
        else:
            self._arrays, self._segments = [plan.packed.make() for _ in range(count)], plan.packed.segments
        self._came = bytearray(count * plan.total)
        if self._gives is Gives.VERSIONS:
            self._versions = np.empty(plan.total, np.int64)
        if (
            plan.has_pulled
        ):  # Where training goes on with them: what is kept, or read for itself, is as the shard has it.
            ordinary = self.reading is Reading.OWN and self._gives not in {Gives.STATE, Gives.KEPT}
            self.may_be_compressed = ordinary and self.version > 0
        if count == 1:
            return dict(plan.counts)
        return {shard: slices * count for shard, slices in plan.counts.items() if count}

    def look(self, memory: GivenArrays) -> None:
        self.in_place = self._out is not None and are_given(memory.values, self.keys.places, self._out)

    def asks(self, shard: int) -> list[tuple[int, int, int, int]]:
        return self._plan.asks.get(shard, [])

    def write(self, shard: int, came: ValueRun) -> int:
        array, bucket, version, first, count, payload, compressed, _ = came
        if version != self.version:
            self.check_version(version)
        plan = self._plan
        runs = plan.of_bucket.get((shard, bucket))
        run = None
        if runs:
            run = runs[0] if len(runs) == 1 else runs[max(bisect_right(runs, first, key=_FIRST) - 1, 0)]
        if run is None or first < run.first or first + count > run.first + run.count or array >= len(self._arrays):
            raise ProtocolError(
                f"Values.first: {_slices(came)}, array {array}; {self} asks shard {shard} for "
                f"{self._told(shard)} and {len(self._arrays)} arrays"
            )
        first -= run.first
        if payload is not None:
            is_whole = count == run.count
            start, end = (0, run.starts[-1]) if is_whole else (int(run.bounds[first]), int(run.bounds[first + count]))
            if compressed:
                payload = self._decoded(run, came, payload)
            if end - start != payload.nbytes:
                told = f"{_slices(came)} have {end - start} in {self}"
                raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {told}")
            self._segments[run.number].copy(start, end, payload, self._arrays[array][1])
        elif not self.in_place:
            raise ProtocolError(f"Values.place: {self} has no places for values")
        first += run.begin
        if self._versions is not None:
            self._versions[first : first + count] = version
        first += array * plan.total
        fresh = self._came.count(0, first, first + count)
        self._came[first : first + count] = b"\1" * count
        return fresh

    def _decoded(self, run: PlanRun, came: ValueRun, payload: memoryview) -> memoryview:
        """The bytes of slices that came encoded, as they are. Raises ProtocolError."""
        if run.pulled is None or not self.may_be_compressed:
            raise ProtocolError(f"Values.compressed: {_slices(came)} travel as they are in {self}")
        begin, end = came.first - run.first, came.stop - run.first
        told = run.pulled.nbytes(begin, end)
        if told != payload.nbytes:
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {_slices(came)}, encoded, have {told} in {self}")
        try:
            return bytes_of(run.pulled.decode(begin, end, payload))
        except PayloadError as error:
            raise ProtocolError(f"payload: {_slices(came)} in {self}: {error}") from error

    def result(self) -> Any:
        arrays = self._arrays[0][0] if self._arrays else []
        match self._gives:
            case Gives.VALUE | Gives.KEPT:
                return arrays[0]
            case Gives.VALUES:
                return arrays
            case Gives.STATE:
                return {name: of[0] for name, (of, _) in zip(self.names or (), self._arrays, strict=True)}
            case Gives.VERSIONS:
                return Pulled(arrays, *self._key_versions())
        raise AssertionError(self._gives)

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        exactly = " exactly" if self.reading is Reading.EXACT else ""
        return f"{what} of {self.keys}, version {self.version}{exactly}"

    def _told(self, shard: int) -> str:
        asked = [
            f"slices {first} to {first + count - 1} of bucket {bucket}"
            for bucket, first, count, _ in self.asks(shard)[:4]
        ]
        return ", ".join(asked) or "none"

    def _key_versions(self) -> tuple[Array, Array]:
        """The lowest and the highest version of each key's slices, (keys) int64; of a key without any, the one asked
        for."""
        plan = self._plan
        lowest = np.full(len(self.keys), _BEYOND, np.int64)
        highest = np.full(len(self.keys), -1, np.int64)
        if plan.total and self._versions is not None:
            np.minimum.at(lowest, plan.part_positions, np.minimum.reduceat(self._versions, plan.part_firsts))
            np.maximum.at(highest, plan.part_positions, np.maximum.reduceat(self._versions, plan.part_firsts))
        none = highest < 0
        lowest[none] = highest[none] = self.version
        return lowest, highest


def _slices(came: ValueRun) -> str:
    return f"slices {came.first} to {came.stop - 1} of bucket {came.bucket}"


class PushPull(KeySend, KeyPull):
    """Gradients of a step, and the values that have seen it: one call, which ends with the values. They say that the
    gradients have arrived; `future.arrived` is set where the shards have said so before."""

    payload_kind = _GRADIENT

    def __init__(
        self,
        future: StoreFuture[Any],
        keys: KeySet,
        step: int,
        arrays: Sequence[Array],
        *,
        gives: Gives,
        out: list[Array] | None = None,
    ) -> None:
        KeyPull.__init__(self, future, keys, step + 1, reading=Reading.OWN, gives=gives, out=out)
        self.future: StoreFuture[Any] = future
        self.step, self.arrays = step, arrays
        self.runs: dict[int, list[SentRun]] = {}
        self._missing = 0

    def look(self, memory: GivenArrays) -> None:
        KeySend.look(self, memory)
        KeyPull.look(self, memory)

    def prepare(self, routing: Routing) -> dict[int, int]:
        pending = KeyPull.prepare(self, routing)
        self.runs = self.send_runs(self._plan)
        self._missing = self._plan.total
        return pending

    def begin(self, link: Link) -> None:
        for run in self.runs[link.shard]:
            link.outbox.put(run)
        super().begin(link)

    def give_up(self, link: Link) -> None:
        link.withdraw(self.runs[link.shard])
        KeyPull.give_up(self, link)

    def delivered(self, shard: int, count: int) -> bool:
        self._missing -= count
        if self._missing <= 0 and not self.ended:  # What was refused is acknowledged too.
            self.future.arrived = True
        return False

    def resent(self, shard: int, run: SentRun) -> None:
        if not self.ended:
            self.runs[shard].append(run)

    def let_go(self) -> None:
        for runs in self.runs.values():
            for run in runs:
                run.cancelled = True  # A connection that breaks now need not bring it again.
        self.runs = {}
        self.arrays = ()
        if self._begun:
            KeySend.let_go(self)

    def __str__(self) -> str:
        return f"pushpull of {self.keys}, step {self.step}"
