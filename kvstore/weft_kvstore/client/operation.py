"""The operation that a call of a store becomes until it ends; pushes and pulls of keys, and of rows. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kernels.row_copies import put_rows
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.client.encoders import EncodedSegment, GradientEncoders
from weft_kvstore.client.plan import KeyList, PlanSegment, key_plan
from weft_kvstore.compression import PayloadError
from weft_kvstore.description.form import BARRIER_KEY
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import StoreFuture
from weft_kvstore.rows.rows import distinct_ids, last_rows, spread_rows, summed_rows
from weft_kvstore.sharding import Routing, RowLayout, chunks_of
from weft_kvstore.store import Pulled
from weft_kvstore.wire.codec import ProtocolError, RowSource, ValueSegment
from weft_kvstore.wire.messages import NO_REQUEST, Done, Measured, Message, PayloadKind, Reading, SentEntry
from weft_kvstore.wire.outbox import CALL_PRIORITY, BufferSource, OutSegment, Source

CALL_WORDS: Final = {
    PayloadKind.GRADIENT: ("push", "step"),
    PayloadKind.VALUE: ("set", "version"),
    PayloadKind.RESTORED: ("restore", "version"),
    PayloadKind.RESTORED_STATE: ("restore of the state", "array"),
}
"""How errors name a call that sends, and its number."""

Answer: TypeAlias = Done | Measured
"""How a shard answers a request that is no pull."""

SentSegment: TypeAlias = "OutSegment[SentEntry, Operation]"


class Operation:
    """What a call becomes until it ends. The core begins it, sends for it and ends it; the thread that does the I/O
    ends its future.

    It sends `segments`, by shard. Its request, if it makes one, is answered by its `number`, and repeated on each new
    connection until it is: a pull is requested from the shards in `asked`, any other request (`is_request`) goes to all
    of them. Those are in `agreement`: barriers and changes of hyper-parameters.

    Most operations keep most of the defaults below, so these are class attributes, which nobody changes. An operation
    sets its own in `__init__` and in `prepare`. The core hands its `segments` to the links, and drops them at the end.
    The core sets `number`, `due_at`, `ended`, `refusal`, `waits_for` and `pending`, which `received` counts down.
    """

    is_request = False
    outlives_failure = False
    """Whether its request is repeated until shards have answered, even after it has failed."""
    is_pull = False
    asked: Mapping[int, list[tuple[int, int, int, int]]] = {}
    """What it pulls: by shard, at most 4,096 of (bucket, first slice, number of slices, chunks of ids)."""
    version = 0
    reading = Reading.OWN
    names: tuple[str, ...] | None = None
    """The rule's state arrays that are pulled; None: the value."""
    may_be_compressed = False
    """Whether values may arrive encoded; `prepare` sets it."""
    is_partial = False
    """Whether some frame of values had only a few of those that a shard sends for it."""

    priority = 0
    """The call's own priority: a higher one goes first."""
    send_priority = 0
    """The priority of what it sends: its own, or that of an earlier call of its keys where this is lower."""
    may_wait = False
    """Whether it is small and may wait for the next call, with which it shares a message."""
    number = 0
    """Its request's number on the wire."""
    due_at = 0.0
    """When it fails."""
    ended = False
    refusal: BaseException | None = None
    """Why some of the values that it sets were refused, or why its pull is given up. It fails with this once all that
    it sends has arrived, since that counts, or once all that it pulls has."""
    sends: Sequence[int] = ()
    """The keys of which it sends gradients or values, by index."""
    pushes: int | None = None
    """The step of which it sends gradients."""
    has_arrived = False
    """Whether shards have all that it sends."""
    _missing = 0
    """How many of the slices that it sends have not been acknowledged."""
    sets: Sequence[int] = ()
    """The keys of which it sets a value, by index."""
    reads: Sequence[int] = ()
    """The keys that its request is about, by index: it takes effect after earlier `set`s of them."""
    ends_step = False
    """Whether it says that the slot has sent all of a step."""
    rows_pushed = 0
    """Rows of a table that it sends."""
    rows_pulled = 0
    """Distinct rows of a table that it asks for."""

    pending: dict[int, int] = {}  # noqa: RUF012
    """How many slices, chunks or answers are missing from each shard; it ends when none is."""
    waits_for: dict[int, str] = {}  # noqa: RUF012
    """What it waits for, as shards have answered."""
    segments: dict[int, list[SentSegment]] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.future: StoreFuture[Any] = StoreFuture()
        """Its driver is the store to which the operation is submitted."""

    def prepare(self, routing: Routing, encoders: GradientEncoders) -> dict[int, int]:
        """Makes what is to be sent. How many slices, chunks or answers are then missing from each shard: one answer
        each, unless an operation says otherwise. `encoders`: of gradients that travel encoded. Raises MemoryError, and
        StoreRefusedError for what cannot be begun now."""
        return dict.fromkeys(range(routing.shards), 1)

    def ask(self, shard: int) -> Sequence[Message]:
        """The messages of a request that is no pull, sent to a shard at first and on each new connection."""
        return ()

    def answered(self, shard: int, message: Answer) -> Sequence[tuple[int, Message]]:
        """Handles a shard's answer. Returns the messages to be sent then, each with its shard. Raises ProtocolError,
        and StoreRefusedError where it cannot be carried out."""
        if isinstance(message, Done) and self.is_request:
            self.received(shard)
            return ()
        raise ProtocolError(f"{type(message).__name__}.request: {self.number}, {self} is not answered so")

    def write(self, shard: int, received: ValueSegment) -> int:
        """Copies slices, or chunks, to where they belong. Returns how many of them were new. Raises ProtocolError where
        they are not what was asked for."""
        raise ProtocolError(f"Values.request: {self.number}, {self} asks for none")

    def arrived(self, shard: int, count: int) -> bool:
        """So many slices that it sent have arrived on a shard. True if that ends it."""
        self._missing -= count
        if self.ended:
            return False
        if self._missing <= 0:  # Refused segments are acknowledged too.
            self.has_arrived = True
            if self.refusal is not None:
                return True
        return shard not in self.asked and self.received(shard, count)

    def received(self, shard: int, count: int = 1) -> bool:
        """So many slices, chunks or answers of a shard are missing no more. True if they were the last."""
        left = self.pending.get(shard, 0) - count
        if left > 0:
            self.pending[shard] = left
            return False
        self.pending.pop(shard, None)
        if self.waits_for:
            self.waits_for.pop(shard, None)
        return not self.pending

    def result(self) -> Any:
        """The result of its future, once it has succeeded."""
        return None

    def fail(self) -> None:
        """It has failed. Drops the caller's arrays at once, as frames that are under way may keep the operation for
        long."""

    def check_version(self, version: int) -> None:
        """Raises ProtocolError for a version that was not asked for."""
        if version < self.version or (version > self.version and self.reading is Reading.EXACT):
            raise ProtocolError(f"Values.version: {version}, {self} was asked for")


class LocalOperation(Operation):
    """Does something between the calls before and behind it, on no shard."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        super().__init__()
        self._name = name
        self._work = work
        self._found: Any = None

    def prepare(self, routing: Routing, encoders: GradientEncoders) -> dict[int, int]:
        self._found = self._work()
        return {}

    def result(self) -> Any:
        return self._found

    def __str__(self) -> str:
        return self._name


# --- Pushes and pulls -------------------------------------------------------------------------------------------------


_GRADIENT: Final = PayloadKind.GRADIENT

Ids: TypeAlias = tuple[Array, int | None]
"""Ids (n) that fit the table, and what `before_padding` says of them."""


Check: TypeAlias = Callable[[str, int], StoreError | None]
"""Called with a key and the version of its values, which is newer than was asked for. Returns the error, if that is
one."""


class PushPull(Operation):
    """A push, set or restore, a pull, or a push and a pull in one, of whole values (`KeyOperation`) or of rows of a
    table (`RowOperation`).

    With a `payload_kind` it sends: gradients of `step`, or values at that version; where state is restored, `array` is
    the number of the state array. The `arrays` are the caller's, one for each key, and kept until the end; of a table
    they are the rows (n, ...row) of `ids`. With a `version` it pulls: the values, or the state arrays of these `names`;
    where `as_kept`, never encoded; of a table the rows of the ids `wanted`. If it does both, the values acknowledge the
    gradients. `check` is called with a key whose values are newer than `version`, and with their version: the pull
    fails with the error that it returns.

    `out`, `as_kept` and `with_versions` are for whole values only, `ids`, `wanted` and `shape` for rows. The caller has
    checked all of that: arrays are C-contiguous and have the keys' dtypes and shapes, one message may name the keys of
    a pull (`MAX_ENTRIES`), and nobody writes what is sent, or is pulled into, before the end.
    """

    def __init__(
        self,
        keys: KeyList,
        *,
        payload_kind: PayloadKind | None = None,
        step: int = 0,
        arrays: Any = (),
        ids: Ids | None = None,
        array: int = 0,
        version: int | None = None,
        reading: Reading = Reading.OWN,
        wanted: Ids | None = None,
        out: list[Array] | None = None,
        shape: tuple[int, ...] | None = None,
        names: tuple[str, ...] | None = None,
        with_versions: bool = False,
        as_kept: bool = False,
        check: Check | None = None,
        priority: int = 0,
    ) -> None:
        self.future, self.keys, self.priority = StoreFuture(), keys, priority
        self.payload_kind = payload_kind
        if payload_kind is not None:
            self.step, self.arrays, self.ids, self.array = step, arrays, ids, array
            self.sends = keys.key_indices
            if payload_kind is _GRADIENT:
                self.pushes = step
                self.may_wait = version is None and keys.is_small
            else:
                self.sets = self.sends
        if version is not None:
            self.is_pull = True
            self.reads = keys.key_indices
            self.version, self.reading, self.names = version, reading, names
            self.wanted, self.out, self.shape = wanted, out, shape
            self.with_versions, self.as_kept, self.check = with_versions, as_kept, check

    def __str__(self) -> str:
        if self.keys.names[:1] == (BARRIER_KEY,):
            return "barrier"
        if self.payload_kind is not None:
            call, number = CALL_WORDS[self.payload_kind]
            return f"{call}{'pull' if self.is_pull else ''} of {self.keys}, {number} {self.step}"
        what = "pull" if self.names is None else "pull of the state"
        call = "read_consistent" if self.reading is Reading.EXACT else what
        return f"{call} of {self.keys}, version {self.version}"


# --- Whole values, of one key or of many at once ----------------------------------------------------------------------
# What is the same in every call of the same keys is in their plan; a call does nothing for each slice.


_FIRST = attrgetter("bucket", "first")


class KeyOperation(PushPull):
    """An operation on whole values. It pulls into new arrays, or into `out`, which are C-contiguous. Its result is a
    list of arrays, the array of a single key, state arrays by name, or a `Pulled` where it is `with_versions`."""

    _encoders: GradientEncoders | None = None
    """Set while this operation's step is begun there, and not ended."""
    _encoded: list[EncodedSegment]

    def prepare(self, routing: Routing, encoders: GradientEncoders) -> dict[int, int]:
        """Makes the arrays that the caller will own, and the segments that it sends."""
        keys = self.keys
        plan = self._plan = keys.made = keys.made or key_plan(routing, keys.key_indices)
        count = 1
        if self.is_pull:
            self.asked = plan.asks
            count = 1 if self.names is None else len(self.names)
            self._arrays = [self.out or [*map(np.empty, keys.shapes, keys.dtypes)] for _ in range(count)]
            """For each of `names`, or the value: an array for each key."""
            self._received = bytearray(count * plan.total)
            """A byte for each array and slice of the plan, 1 once it has come."""
            self._versions: list[set[int]] = [set() for _ in self.keys.names] if self.with_versions else []
            """By key: the versions of what has come."""
            # Encoded where training goes on with them: what is kept, or read for itself, is as the shard has it.
            self.may_be_compressed = (
                self.reading is Reading.OWN and self.version > 0 and self.names is None and not self.as_kept
            )
        kind, boost = self.payload_kind, self.send_priority * CALL_PRIORITY
        if kind is not None:
            sent, arrays = plan, self.arrays
            number = NO_REQUEST if kind is _GRADIENT else self.number  # Gradients of several calls are one segment.
            if plan.has_pushed and kind is _GRADIENT:
                found = encoders.begin(self.keys, self.step)
                self._key_encoders, self._encoders, self._encoded = [*found.values()], encoders, []
                if len(found) < len(arrays):  # The others have arrived before.
                    sent = key_plan(routing, [self.keys.key_indices[at] for at in found])
                    arrays, self.has_arrived = [arrays[at] for at in found], not sent.total
            self._missing = sent.total
            self.segments, of_call = {}, partial(sent.read, arrays)
            for shard, segments in sent.segments.items():
                mine = self.segments[shard] = []
                for segment in segments:
                    source: Source = of_call
                    bounds = segment.bounds
                    if self._encoders is not None and segment.pushed is not None:
                        bounds, scale = segment.pushed.begins, self._encoders.scale
                        source = one = EncodedSegment(
                            sent, segment, arrays, self._key_encoders, step=self.step, scale=scale
                        )
                        self._encoded.append(one)
                    entry = SentEntry(kind, number, segment.bucket, self.step, self.array)
                    priorities = segment.priorities
                    if priorities is not None and boost:
                        priorities = priorities - boost
                    mine.append(
                        OutSegment(
                            entry,
                            segment.first,
                            bounds,
                            source,
                            priority=segment.priority - boost,
                            owner=self,
                            priorities=priorities,
                        )
                    )
            if not self.is_pull:
                return dict(sent.counts)
        if count == 1:
            return dict(plan.counts)
        return {shard: slices * count for shard, slices in plan.counts.items() if count}

    def write(self, shard: int, received: ValueSegment) -> int:
        array, version, payload = received.array, received.version, received.payload
        bucket, first, count = received.bucket, received.first, received.count
        if version != self.version:
            self.check_version(version)
        plan = self._plan
        segments = plan.segments[shard]
        segment = segments[0 if len(segments) == 1 else bisect_right(segments, (bucket, first), key=_FIRST) - 1]
        beyond = first < segment.first or first + count > segment.first + segment.count
        if beyond or bucket != segment.bucket or array >= len(self._arrays):
            asked = [f"slices {one} to {one + n - 1} of bucket {of}" for of, one, n, _ in self.asked[shard][:4]]
            raise ProtocolError(
                f"Values.first: {_slices(received)}, array {array}; {self} asks shard {shard} for "
                f"{', '.join(asked)} and {len(self._arrays)} arrays"
            )
        first -= segment.first
        start, end = int(segment.bounds[first]), int(segment.bounds[first + count])
        if received.compressed:
            payload = self._decoded(segment, received, payload)
        if end - start != payload.nbytes:
            detail = f"{_slices(received)} have {end - start} in {self}"
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {detail}")
        written = plan.write(self._arrays[array], start, end, payload)
        if self._versions or (version > self.version and self.check is not None):
            for one in written:
                if self._versions:
                    self._versions[one.position].add(version)
                if self.check is not None:
                    self.refusal = self.refusal or self.check(self.keys.names[one.position], version)
        first += segment.number + array * plan.total
        fresh = self._received.count(0, first, first + count)
        self._received[first : first + count] = b"\1" * count
        return fresh

    def _decoded(self, segment: PlanSegment, received: ValueSegment, payload: memoryview) -> memoryview:
        """The bytes of slices that came encoded, as they are. Raises ProtocolError."""
        if segment.pulled is None or not self.may_be_compressed:
            raise ProtocolError(f"Values.compressed: {_slices(received)} travel as they are in {self}")
        begin, end = received.first - segment.first, received.stop - segment.first
        expected = segment.pulled.nbytes(begin, end)
        if expected != payload.nbytes:
            raise ProtocolError(
                f"Values.nbytes: {payload.nbytes}, {_slices(received)}, encoded, have {expected} in {self}"
            )
        try:
            segment.pulled.check(begin, end, payload)
        except PayloadError as error:
            raise ProtocolError(f"payload: {_slices(received)} in {self}: {error}") from error
        return bytes_of(segment.pulled.decode(begin, end, payload))

    def result(self) -> Any:
        if self._encoders is not None:
            self._end_push(failed=False)
        if not self.is_pull:
            return None
        if self.names is not None:
            return {name: arrays[0] for name, arrays in zip(self.names, self._arrays, strict=True)}
        arrays = self._arrays[0]
        if self.with_versions:
            versions = [some or {self.version} for some in self._versions]
            return Pulled(arrays, np.array([*map(min, versions)], np.int64), np.array([*map(max, versions)], np.int64))
        return arrays[0] if self.keys.single else arrays

    def fail(self) -> None:
        self.arrays = ()
        if self._encoders is not None:
            self._end_push(failed=not self.has_arrived)

    def _end_push(self, *, failed: bool) -> None:
        """Ends a push of encoded gradients. Those of a pushpull that fails may have arrived."""
        encoders, self._encoders = self._encoders, None
        assert encoders is not None
        encoders.end_push(self._key_encoders, self.step, failed=failed)
        for one in self._encoded if failed else ():
            one.keep()
        self._encoded.clear()


def _slices(received: ValueSegment) -> str:
    return f"slices {received.first} to {received.stop - 1} of bucket {received.bucket}"


# --- Rows of a table: cut into chunks by shard, and put together again ------------------------------------------------


TAKEN_BYTES: Final = 1 << 16
"""A message with so many bytes of rows, which are all that was asked for, becomes the caller's array."""

_ROWS_ALONE: Final = frozenset({PayloadKind.VALUE, PayloadKind.RESTORED_STATE})
"""Payloads that are not sent to a shard that has none of the rows."""


class RowOperation(PushPull):
    """An operation on rows of a table. It pulls a new array of `shape` (n, ...row), or state arrays by name. Ids that
    are both sent and wanted, which are the same array then, travel once."""

    _layout: RowLayout

    def prepare(self, routing: Routing, encoders: GradientEncoders) -> dict[int, int]:
        """Makes the arrays that rows are received into, and the chunks that it sends."""
        (index,) = self.keys.key_indices
        layout = self._layout = routing.tables[index]
        self.asked: dict[int, list[tuple[int, int, int, int]]] = {}
        self.segments = {}
        self._bucket = routing.bucket_of[index]
        self._priority = self.keys.keys[0].priority - self.send_priority * CALL_PRIORITY
        known, is_same = None, False
        if self.is_pull:
            assert self.wanted is not None
            is_same = self.payload_kind is not None and self.ids is not None and self.wanted[0] is self.ids[0]
            known = ids, self._index = distinct_ids(*self.wanted)
            self.rows_pulled = len(ids)
            self._arrays: list[Array] = []
            for _ in (None,) if self.names is None else self.names:
                self._arrays.append(np.empty((len(ids), layout.width), layout.dtype))
            self._by_shard = layout.by_shard(ids.view(layout.id_dtype))
            """Which of the rows that are pulled each shard has."""
            self._received: dict[int, tuple[int, bytearray]] = {}
            """How many rows each shard is asked for; and a byte for each array and chunk of them, 1 once it has
            come."""
        if not layout.row_bytes:
            return {}
        pending = {} if self.payload_kind is None else self._send(self.payload_kind, known if is_same else None)
        if known is None or not self._arrays:
            return pending
        for shard, positions in enumerate(self._by_shard):
            rows = self.rows_pulled if positions is None else len(positions)
            if rows:
                chunks = 0
                if not is_same:
                    of = BufferSource(bytes_of(ids if positions is None else ids.take(positions)))
                    chunks = self._put(shard, PayloadKind.IDS, self.version, of, rows, layout.ids_up, ID_BYTES)
                self.asked[shard] = [(self._bucket, 0, 0, chunks)]
                self._received[shard] = rows, bytearray(len(self._arrays) * -(-rows // layout.rows_down))
                pending[shard] = len(self._received[shard][1])
        return pending

    def _send(self, kind: PayloadKind, known: tuple[Array, Array | None] | None) -> dict[int, int]:
        """Puts rows into chunks by shard. Each shard that has rows of the table gets at least one chunk of a push, so
        that it knows that the slot has pushed. Returns how many chunks each shard gets. `known`: the result of
        `distinct_ids`, where it is known."""
        assert self.ids is not None
        (ids, count), layout = self.ids, self._layout
        values, by_shard = self.arrays.reshape(len(ids), layout.width), None if known is None else self._by_shard
        if count != len(ids) or kind is not PayloadKind.GRADIENT:
            is_sum = kind is PayloadKind.GRADIENT
            distinct = summed_rows(ids, values, count, known=known) if is_sum else last_rows(ids, values)
            ids, values = distinct.ids, distinct.values
        if kind is not PayloadKind.RESTORED_STATE:
            self.rows_pushed = len(ids)
        ids = ids.view(layout.id_dtype)
        pending = {}
        for shard, positions in enumerate(by_shard or layout.by_shard(ids)):
            source = RowSource(ids, values, layout, positions)
            if not source.count and (kind in _ROWS_ALONE or not layout.rows_on(shard)):
                continue
            width = ID_BYTES + layout.row_bytes
            pending[shard] = self._put(shard, kind, self.step, source, source.count, layout.rows_up, width)
        return pending

    def _put(  # noqa: PLR0917  # as a message has it
        self, shard: int, kind: PayloadKind, step: int, source: Source, rows: int, chunk_rows: int, row_bytes: int
    ) -> int:
        """Sends so many rows, or ids, of `row_bytes` each, in chunks of `chunk_rows`. Returns how many chunks these
        are."""
        chunks = chunks_of(rows, chunk_rows)
        bounds: Array = np.minimum(np.arange(chunks + 1) * chunk_rows, rows) * row_bytes
        entry = SentEntry(kind, self.number, self._bucket, step, chunks)
        segment: SentSegment = OutSegment(entry, 0, bounds, source, priority=self._priority, owner=self)
        self.segments.setdefault(shard, []).append(segment)
        self._missing += chunks
        return chunks

    def write(self, shard: int, received: ValueSegment) -> int:
        """Copies adjacent chunks to where they belong. A large message that is all of an array becomes that array."""
        array, payload, first, count = received.array, received.payload, received.first, received.count
        if received.version != self.version:
            self.check_version(received.version)
            if self.check is not None:
                self.refusal = self.refusal or self.check(self.keys.names[0], received.version)
        if received.compressed:
            raise ProtocolError(f"Values.compressed: 1, {self} is of rows, which travel as they are")
        if received.bucket != self._bucket:
            raise ProtocolError(f"Values.bucket: {received.bucket}, {self} asks for bucket {self._bucket}")
        (rows_asked, seen), positions, layout = self._received[shard], self._by_shard[shard], self._layout
        total = len(seen) // len(self._arrays)
        if array >= len(self._arrays) or first + count > total:
            raise ProtocolError(
                f"Values.first: chunks {first} to {first + count - 1} of array {array}; {self} has {total} chunks "
                f"and {len(self._arrays)} arrays"
            )
        low, high = first * layout.rows_down, min((first + count) * layout.rows_down, rows_asked)
        if (high - low) * layout.row_bytes != payload.nbytes:
            detail = f"the rows of {self.keys.names[0]!r} have {(high - low) * layout.row_bytes}"
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {detail}")
        rows: Array = np.frombuffer(payload, layout.dtype).reshape(high - low, layout.width)
        if positions is not None:
            put_rows(self._arrays[array], positions[low:high], rows)
        elif (
            received.owned
            and count == total
            and rows.nbytes >= TAKEN_BYTES
            and rows.flags.writeable
            and rows.flags.aligned
        ):
            self._arrays[array] = rows
        else:
            self._arrays[array][low:high] = rows
        begin = array * total + first
        fresh = seen.count(0, begin, begin + count)
        seen[begin : begin + count] = b"\1" * count
        return fresh

    def result(self) -> Any:
        if not self.is_pull:
            return None
        found = self._arrays if self._index is None else [spread_rows(one, self._index) for one in self._arrays]
        rows, shape = self.rows_pulled if self._index is None else len(self._index), self.shape
        shape = (rows, *self.keys.shapes[0][1:]) if shape is None else shape
        if self.names is None:
            return found[0].reshape(shape)
        return {name: one.reshape(shape) for name, one in zip(self.names, found, strict=True)}

    def fail(self) -> None:
        self.ids, self.arrays = None, ()
