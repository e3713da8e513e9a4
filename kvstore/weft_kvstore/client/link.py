"""One link to a shard: what is sent, acknowledged, and sent again after a break. Pure: the time is a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from weft_kvstore.arrays import Buffer
from weft_kvstore.client.connection import Connection, Due, LinkState
from weft_kvstore.client.operation import Operation
from weft_kvstore.same_host.layout import LinkMemory
from weft_kvstore.settings import LinkSettings, is_loopback
from weft_kvstore.wire.codec import ProtocolError, ValueRun, encode, lent_runs, payload_bytes, value_runs
from weft_kvstore.wire.messages import (
    MAX_RUNS,
    Acknowledge,
    Bye,
    Hello,
    Message,
    Ping,
    Pull,
    Push,
    Refused,
    SentEntry,
    Values,
    Welcome,
    Why,
    nbytes_of,
)
from weft_kvstore.wire.outbox import Outbox, OutFrame, Piece, parts_of

# --- Pulls, and frames of what is pushed, as the messages that say them -----------------------------------------------


SentPiece: TypeAlias = Piece[SentEntry, Operation]
SentFrame: TypeAlias = OutFrame[SentEntry, Operation]


CARRIES_PULL_BYTES: Final = 1 << 16
"""A frame of at most so many bytes takes a pull along: a message of its own would cost more than the wait for them."""


def pull_messages(pulls: Iterable[Operation], shard: int, *, shared: bool) -> list[Pull]:
    """Asks for what is still wanted. `shared`: the shard has the arena."""
    messages: list[Pull] = []
    room = priority = 0
    for pull in pulls:
        if pull.ended or not (runs := pull.asked.get(shard)):
            continue
        if len(runs) > room or pull.priority != priority:
            room, priority = MAX_RUNS, pull.priority
            messages.append(Pull([], priority))
        room -= len(runs)
        place = shared and pull.in_place
        state, compressed = pull.names is not None, pull.may_be_compressed
        messages[-1].asks.append((pull.number, pull.version, state, pull.reading, compressed, place, runs))
    return messages


# --- What of a link's frames is under way in the client's arena: laid there, arrived, and read no more ----------------
# The shard reads what lies in the arena where it lies, so that it has arrived at one time and may be written at
# another. What a connection that broke had brought there may be read still, until the shard says so on the next one.


UNREAD: Final = "the shard has it where it lies, and reads it once the other slots have pushed the step"


class ArenaFrames:
    """`memory` is the arena, while the shard has it. `in_use`: a frame was laid there, by this connection or before.

    Invariants: `_laid` has the frames of this connection that the shard may read, each with the piece of the stage that
    it has, if any; `_unread` has those of them that have arrived, each with its pieces in the caller's own arrays.
    `_left` are pieces of the stage that earlier connections have. `_read_before`: arrays of the caller may be read
    still through an earlier connection; `_late` has arrived since.
    """

    __slots__ = (
        "_laid",
        "_late",
        "_left",
        "_read_before",
        "_shard",
        "_unread",
        "bytes_received",
        "bytes_sent",
        "had_memory",
        "in_use",
        "memory",
    )

    def __init__(self, shard: int) -> None:
        self.in_use = False
        self.bytes_sent = 0
        self.bytes_received = 0
        self._shard = shard
        self.memory: LinkMemory | None = None
        self.had_memory = False
        """Whether the shard has had the arena on this connection."""
        self._laid: dict[int, tuple[LinkMemory, int] | None] = {}
        self._unread: dict[int, list[SentPiece]] = {}
        self._left: list[tuple[LinkMemory, int]] = []
        self._read_before = False
        self._late: list[SentPiece] = []

    def share(self, memory: LinkMemory | None) -> None:
        """The shard has the arena, or has it no more."""
        self.memory = memory
        self.had_memory = self.had_memory or memory is not None

    @property
    def is_lost(self) -> bool:
        """Whether the shard had the arena and has it no more: the connection is about to end."""
        return self.had_memory and self.memory is None

    def runs_of(self, values: Values, payload: memoryview) -> list[tuple[int, ValueRun]]:
        """As `value_runs`, of a frame of values that uses shared memory. Raises ProtocolError."""
        if self.memory is None:
            told = "lent: true" if values.lent else "place: 1" if values.at is None else f"at: {values.at}"
            raise ProtocolError(f"Values.{told}, the shard has no arena")
        if values.lent:
            return lent_runs(values, self.memory.lent)
        return value_runs(
            values, payload if values.at is None else self.memory.payload(values.at, payload_bytes(values))
        )

    def push(
        self, memory: LinkMemory, frame: SentFrame, acknowledge: list[int], pull: Pull | None = None, number: int = 0
    ) -> list[Buffer]:
        """A frame as message `number`, whose bytes are in the arena, as far as there is room for them."""
        placed = any(one.run.entry.place for one in frame.pieces)
        pieces = _not_in_place(frame.pieces) if placed else frame.pieces
        nbytes = sum([one.stop - one.start for one in pieces])
        parts = parts_of(pieces)
        at = memory.lay(parts, nbytes)
        message = Push(frame.number, frame.rows(placed=placed), at, acknowledge, pull)
        if at is None and not placed:
            return encode(message, parts[0] if len(parts) == 1 else b"".join(parts), number)
        self.in_use = True
        self._laid[frame.number] = None if at is None else (memory, at)
        self.bytes_sent += frame.nbytes if at is not None else frame.nbytes - nbytes
        return encode(message, None if at is not None or not parts else b"".join(parts), number)

    def arrived(self, frame: int, pieces: Sequence[SentPiece]) -> Sequence[SentPiece]:
        """A frame has arrived: which of its pieces have nothing more to wait for.

        What lies in the caller's own arrays waits until it was read; what was copied, and is the store's, does not.
        """
        if frame in self._laid:
            unread = self._unread[frame] = _in_place(pieces)
            for one in unread:
                one.run.owner.because[self._shard] = UNREAD
        elif self._read_before:
            self._late += _in_place(pieces)
        else:
            return pieces
        return _not_in_place(pieces)

    def released(self, frame: int) -> Sequence[SentPiece] | None:
        """What a frame has here is read no more: its pieces that waited for that; None where it had not arrived.
        Raises ProtocolError for a frame that has nothing here."""
        if frame not in self._laid:
            raise ProtocolError(f"Released.frame: {frame} is not in the arena")
        staged = self._laid.pop(frame)
        if staged is not None:
            staged[0].give(staged[1])
        return self._unread.pop(frame, None)

    def released_before(self) -> Sequence[SentPiece]:
        """What earlier connections have here is read no more: the pieces that waited for that."""
        left, self._left = self._left, []
        for memory, offset in left:
            memory.give(offset)
        late, self._late, self._read_before = self._late, [], False
        return late

    def begin_anew(self) -> list[SentPiece]:
        """A new connection begins: what it has to bring again though it had arrived."""
        self.memory, self.had_memory = None, False
        # What earlier connections brought there may be read still, and is not written before the shard says so.
        self._left += [staged for staged in self._laid.values() if staged is not None]
        self._read_before = self._read_before or bool(self._laid)
        again = [*chain(*self._unread.values()), *self._late]
        for one in again:
            one.run.owner.because.pop(self._shard, None)
        self._laid, self._unread, self._late = {}, {}, []
        return again


def _in_place(pieces: Sequence[SentPiece]) -> list[SentPiece]:
    return [one for one in pieces if one.run.entry.place]


def _not_in_place(pieces: Sequence[SentPiece]) -> list[SentPiece]:
    return [one for one in pieces if not one.run.entry.place]


def _are_before(frame: SentFrame, pull: Pull) -> bool:
    """Whether all calls that a frame is of were made before what is pulled: the shard answers after it has the frame,
    and a pull does not see a push that was made after it. Calls are numbered as they are made."""
    return max([one.run.owner.number for one in frame.pieces]) <= min([ask[0] for ask in pull.asks])


# --- A client's link to one shard: what is asked of it, and what is under way -----------------------------------------
# A connection that breaks may have lost anything. The next one begins with a Hello; after its Welcome, all pulls and
# barriers that are not answered are asked again, and all slices that are not acknowledged are sent again. The shard
# takes each in once.


class ClientLink:
    """`reopen` asks for a new socket before what is in `outgoing` is sent; `listener` that the arena
    can be brought there, with its ticket.

    `requests` are pulls and barriers that are not answered, by number, in the order asked.
    """

    def __init__(self, shard: int, endpoint: str, hello: Hello, settings: LinkSettings, now: float) -> None:
        self.shard = shard
        self.name = f"shard {shard} at {endpoint}"
        self.connection = Connection(self.name, settings, now)
        self.outbox: Outbox[SentEntry, Operation] = Outbox(settings, loopback=is_loopback(endpoint))
        self.arena = ArenaFrames(shard)
        self.requests: dict[int, Operation] = {}
        self.outgoing: list[list[Buffer]] = []
        self.reopen = False
        self.listener: tuple[bytes, bytes] | None = None
        self.sent = 0
        """Messages that were sent on this connection: the number of the last one."""
        self.received = 0
        """The number of the last message that came on it."""
        self.frames_sent = 0
        self.frames_received = 0
        self.payload_bytes_sent = 0
        self.payload_bytes_received = 0
        self._hello = hello
        self._greeting: list[Buffer] = []
        """The connection's first message, said again until it is answered."""
        self._same_host = settings.same_host
        self.new_pulls: list[Operation] = []
        """What is to be asked for with the next `flush`."""
        self.acknowledge: list[int] = []
        """Frames of values that have arrived and of which the shard has not been told."""

    def ask(self, request: Operation) -> None:
        """Says a request: at first, and again on each new connection until it is answered."""
        if not request.is_pull:
            for message in request.ask(self.shard):
                self.say(message)
            return
        self.new_pulls.append(request)
        if request.sends_ids:  # All of them again: what came of them is forgotten with a connection.
            for before in request.runs.get(self.shard, ()):
                self.outbox.cancel(before)
            run = request.ids(self.shard)
            request.runs[self.shard] = [run]
            self.outbox.put(run)

    def say(self, message: Message) -> None:
        """Sends a control message now; it goes before all data that has not left. Nothing while there is no link."""
        if self.connection.state is LinkState.OPEN:
            self.sent += 1
            self.outgoing.append(encode(message, None, self.sent))

    def share(self, memory: LinkMemory | None) -> None:
        """The shard has mapped the client's arena, or has it no more."""
        self.arena.share(memory)
        self.outbox.shared = memory is not None

    def arrived(self, values: Values) -> None:
        """A frame of values was copied."""
        total = sum(map(nbytes_of, values.runs))
        self.frames_received += 1
        self.payload_bytes_received += total
        if self.arena.had_memory:
            in_message = values.at is None and not values.lent
            self.arena.bytes_received += total - (payload_bytes(values) if in_message else 0)
        self.acknowledge.append(values.frame)

    def released(self, frame: int, now: float) -> Sequence[SentPiece]:
        """What a frame has in the arena is read no more, so it has arrived; 0: what earlier connections have. Raises
        ProtocolError."""
        if not frame:
            return self.arena.released_before()
        pieces = self.arena.released(frame)
        return self.outbox.acknowledge(frame, now) if pieces is None else pieces

    def greeted(self, message: Welcome | Refused, now: float) -> None:
        """The shard says whether it talks with us; if so, everything that is open is asked again. Raises
        ProtocolError."""
        if isinstance(message, Refused):
            self.connection.turn_away(message, now)
        elif self.connection.welcome(message, now):
            if self._same_host and message.listener:
                self.listener = message.listener, message.ticket
            for request in self.requests.values():
                self.ask(request)

    def tick(self, now: float) -> bool:
        """Keeps the connection alive. Whether the shard has to be held for lost, at the moment it becomes so."""
        due = self.connection.tick(now)
        if Due.CONNECT in due:
            self._connect()
        if Due.SIGN in due:
            if self.connection.state is LinkState.OPEN:
                self.say(Ping())
            else:
                self.outgoing.append(self._greeting)
        return Due.LOST in due

    def flush(self, now: float, most: float = math.inf) -> bool:
        """Puts requests, acknowledgements and as many frames as credit allows into `outgoing`, `most` bytes of frames
        where no slice is larger. Whether others wait only for that."""
        if self.connection.state is not LinkState.OPEN:
            return False
        frame, memory = self.outbox.fill(now, most) if self.outbox.queued_slices else None, self.arena.memory
        pull = None
        if self.new_pulls:
            messages = pull_messages(self.new_pulls, self.shard, shared=memory is not None)
            self.new_pulls.clear()
            if (
                messages
                and frame is not None
                and (memory is not None or frame.nbytes <= CARRIES_PULL_BYTES)
                and _are_before(frame, messages[-1])
            ):
                pull = messages.pop()
            for message in messages:
                self.say(message)
        while frame is not None:
            self.frames_sent += 1
            self.payload_bytes_sent += frame.nbytes
            receipts, self.acknowledge = self.acknowledge[:MAX_RUNS], self.acknowledge[MAX_RUNS:]
            self.sent += 1
            if memory is None:
                push = Push(frame.number, frame.rows(placed=False), None, receipts, pull)
                self.outgoing.append(encode(push, frame.payload(), self.sent))
            else:
                self.outgoing.append(self.arena.push(memory, frame, receipts, pull, self.sent))
            most -= frame.nbytes
            if most <= 0 and self.outbox.queued_slices:
                return True
            frame, pull = self.outbox.fill(now, most) if self.outbox.queued_slices else None, None
        while self.acknowledge:  # No frame leaves that could say it.
            receipts, self.acknowledge = self.acknowledge[:MAX_RUNS], self.acknowledge[MAX_RUNS:]
            self.say(Acknowledge(receipts))
        return False

    def ask_why(self, numbers: Iterable[int]) -> None:
        """Asks the shard what these requests wait for, the first 4,096 of them."""
        here = [number for number in numbers if number in self.requests]
        if here:
            self.say(Why(here[:MAX_RUNS]))

    def close(self) -> None:
        self.say(Bye())

    def _connect(self) -> None:
        """A new connection begins, with what the last one may have lost."""
        self.reopen = True
        self.new_pulls.clear()
        self.acknowledge.clear()
        self.listener = None
        again = self.arena.begin_anew()
        self.outbox.shared = False
        for run in self.outbox.requeue(again):
            if not run.owner.ended:
                run.owner.runs[self.shard].append(run)
        session, loopback = self.connection.session, self.outbox.loopback
        self.sent, self.received = 1, 0
        self._greeting = encode(
            msgspec.structs.replace(self._hello, session=session, loopback=loopback), None, self.sent
        )
        self.outgoing = [self._greeting]
