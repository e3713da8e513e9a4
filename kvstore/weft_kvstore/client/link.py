"""One link to a shard: what is sent, acknowledged, and sent again after a break. Pure: the time is a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.client.connection import Connection, Due, LinkState
from weft_kvstore.client.operation import Operation
from weft_kvstore.same_host.memory import SharedMemory, Span
from weft_kvstore.settings import LinkSettings, is_loopback
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import (
    MAX_RUNS,
    NOBODY,
    Acknowledge,
    Cancel,
    Hello,
    Message,
    Ping,
    Pull,
    Push,
    Refused,
    SentEntry,
    Welcome,
)
from weft_kvstore.wire.outbox import Fragment, Outbox, OutFrame

# --- Pulls, and frames of what is pushed, as the messages that say them -----------------------------------------------


SentFragment: TypeAlias = Fragment[SentEntry, Operation]
SentFrame: TypeAlias = OutFrame[SentEntry, Operation]


CARRIES_PULL_BYTES: Final = 1 << 16
"""A frame of at most so many bytes takes a pull along: a message of its own would cost more than the wait for them."""


def pull_messages(pulls: Iterable[Operation], shard: int) -> list[Pull]:
    """Asks for what is still wanted."""
    messages: list[Pull] = []
    room = priority = 0
    for pull in pulls:
        if pull.ended or not (runs := pull.asked.get(shard)):
            continue
        if len(runs) > room or pull.priority != priority:
            room, priority = MAX_RUNS, pull.priority
            messages.append(Pull([], priority))
        room -= len(runs)
        state, compressed = pull.names is not None, pull.may_be_compressed
        messages[-1].asks.append((pull.number, pull.version, state, pull.reading, compressed, runs))
    return messages


# --- Frames whose payload is in the client's shared memory: put there, arrived, read and released ---------------------
# The shard reads a frame's bytes in this memory, so they arrive at one time (`acknowledge`) and may be written again at
# a later one (`released`). Frames of a connection that broke may still be read, until the shard says on the next
# connection that they are not (`released` of frame 0).


UNREAD: Final = "the shard has it where it lies, and reads it once the other slots have pushed the step"


class ArenaFrames:
    """`memory` is the client's, while the shard has mapped it; `peer_memory` is then the shard's, if it shares any.
    `in_use`: a frame was put there, by this connection or before.

    Invariants: `_shared_frames` are this connection's frames that the shard may read: their spans, and which of their
    fragments are arrays of `gradient_buffer`. `_unread` are these fragments of the frames that have arrived. `_left`
    are the spans of earlier connections. `_read_before`: the shard may still read arrays of `gradient_buffer` through
    an earlier connection; `_late` are fragments that have arrived since."""

    __slots__ = (
        "_late",
        "_left",
        "_own",
        "_read_before",
        "_shard",
        "_shared_frames",
        "_unread",
        "bytes_received",
        "bytes_sent",
        "in_use",
        "memory",
        "peer_memory",
    )

    def __init__(self, shard: int, own: SharedMemory | None = None) -> None:
        self.in_use = False
        self.bytes_sent = 0
        self.bytes_received = 0
        self._shard = shard
        self._own = own
        self.memory: SharedMemory | None = None
        self.peer_memory: Array | None = None
        self._shared_frames: dict[int, tuple[list[Span], list[bool]]] = {}
        self._unread: dict[int, list[SentFragment]] = {}
        self._left: list[list[Span]] = []
        self._read_before = False
        self._late: list[SentFragment] = []

    def put(self, frame: SentFrame) -> list[Span]:
        """Where the bytes of a frame are, for the shard to read; nothing where they have to travel."""
        if self.memory is None or frame.nbytes < self.memory.least_bytes:
            return []
        sections = frame.sections()
        put = self.memory.put([parts for _, parts in sections])
        if put is None:
            return []
        spans, in_place = put
        flags = [flag for (fragments, _), flag in zip(sections, in_place, strict=True) for _ in fragments]
        self.in_use = True
        self._shared_frames[frame.number] = spans, flags
        self.bytes_sent += frame.nbytes
        return spans

    def arrived(self, frame: int, fragments: Sequence[SentFragment]) -> Sequence[SentFragment]:
        """A frame has arrived: which of its fragments have nothing more to wait for.

        What lies in the caller's own arrays waits until it was read; what was copied, and is the store's, does not.
        """
        if frame in self._shared_frames:
            in_place = self._shared_frames[frame][1]
            unread = self._unread[frame] = [one for one, waits in zip(fragments, in_place, strict=True) if waits]
            for one in unread:
                one.run.owner.because[self._shard] = UNREAD
            return [one for one, waits in zip(fragments, in_place, strict=True) if not waits]
        if self._read_before:
            self._late += fragments
            return ()
        return fragments

    def released(self, frame: int) -> Sequence[SentFragment] | None:
        """What a frame has here is read no more: its fragments that waited for that; None where it had not arrived.
        Raises ProtocolError for a frame that has nothing here."""
        if frame not in self._shared_frames:
            raise ProtocolError(f"Released.frame: {frame} is not in shared memory")
        self._free([self._shared_frames.pop(frame)[0]])
        return self._unread.pop(frame, None)

    def released_before(self) -> Sequence[SentFragment]:
        """What earlier connections have here is read no more: the fragments that waited for that."""
        left, self._left = self._left, []
        self._free(left)
        late, self._late, self._read_before = self._late, [], False
        return late

    def reset(self) -> list[SentFragment]:
        """A new connection begins: what it has to bring again though it had arrived."""
        self.memory = self.peer_memory = None
        # What earlier connections brought there may be read still, and is not written before the shard says so.
        self._left += [spans for spans, _ in self._shared_frames.values()]
        self._read_before = self._read_before or any(any(in_place) for _, in_place in self._shared_frames.values())
        again = [*chain(*self._unread.values()), *self._late]
        for one in again:
            one.run.owner.because.pop(self._shard, None)
        self._shared_frames, self._unread, self._late = {}, {}, []
        return again

    def _free(self, frames: Iterable[list[Span]]) -> None:
        if self._own is not None:
            for spans in frames:
                self._own.free(spans)


def _carries(frame: SentFrame, pull: Pull, *, is_short: bool) -> bool:
    """Whether a frame takes a pull along. One of rows may always, as the shard reads their pull first. Another is
    short, and all calls that it is of were made before what is pulled: the shard answers after it has the frame, and a
    pull does not see a push that was made after it. Calls are numbered as they are made."""
    last, first = 0, pull.asks[0][0]
    for one in frame.fragments:  # Loops, as a generator would be a frame of its own for each.
        if one.run.entry.chunks:
            return True
        last = max(last, one.run.owner.number)
    for ask in pull.asks:
        first = min(first, ask[0])
    return is_short and last <= first


# --- A client's link to one shard: what is asked of it, and what is under way -----------------------------------------
# A connection that breaks may have lost any message. The next one begins with a Hello. After its Welcome, all requests
# that are not answered and all slices that are not acknowledged are sent again. The shard counts each once.


class ClientLink:
    """`reopen` asks for a new socket before what is in `outgoing` is sent; `listener` is where the client
    and the shard can give each other their memory, until they are about to.

    `requests` are pulls and barriers that are not answered, by number, in the order asked.
    """

    def __init__(
        self,
        shard: int,
        endpoint: str,
        hello: Hello,
        settings: LinkSettings,
        now: float,
        *,
        memory: SharedMemory | None = None,
    ) -> None:
        """`memory`: the client's, for shards of its host to read."""
        self.shard = shard
        self.name = f"shard {shard} at {endpoint}"
        self.connection = Connection(self.name, settings, now)
        self.outbox: Outbox[SentEntry, Operation] = Outbox(settings, loopback=is_loopback(endpoint))
        self.arena = ArenaFrames(shard, memory)
        self.requests: dict[int, Operation] = {}
        self.outgoing: list[list[Buffer]] = []
        self.reopen = False
        self.listener = b""
        self.sent = 0
        """Messages that were sent on this connection: the number of the last one."""
        self.received = 0
        """The number of the last message that came on it."""
        self.frames_sent = 0
        self.frames_received = 0
        self.payload_bytes_sent = 0
        self.payload_bytes_received = 0
        self.hello = hello
        self._greeting: list[Buffer] = []
        """The connection's first message, said again until it is answered."""
        self._memory = memory
        self.may_share = False
        """Whether the shard may have been given the client's memory on this connection."""
        self._repeats = False
        """Whether the open requests are to be said again, on a new connection."""
        self.new_pulls: list[Operation] = []
        """What is to be asked for with the next `flush`."""
        self.acknowledge: list[int] = []
        """Frames of values that have arrived and are not acknowledged."""

    def ask(self, request: Operation) -> None:
        """Says a request: at first, and again on each new connection until it is answered."""
        if not request.is_pull:
            for message in request.ask(self.shard):
                self.say(message)
            return
        self.new_pulls.append(request)

    def say(self, message: Message) -> None:
        """Sends a control message now; it goes before all data that has not left. Nothing while there is no link."""
        if self.connection.state is LinkState.OPEN:
            self.sent += 1
            self.outgoing.append(encode(message, None, self.sent))

    def share(self, peer_memory: Array | None, *, taken: bool) -> None:
        """Whether the shard has mapped the client's memory, and the shard's own, if it shares any."""
        self.arena.memory, self.arena.peer_memory = self._memory if taken else None, peer_memory
        self.outbox.shared = taken

    def released(self, frame: int, now: float) -> Sequence[SentFragment]:
        """What a frame has in the arena is read no more, so it has arrived; 0: what earlier connections have. Raises
        ProtocolError."""
        if not frame:
            return self.arena.released_before()
        fragments = self.arena.released(frame)
        return self.outbox.acknowledge(frame, now) if fragments is None else fragments

    def on_handshake(self, message: Welcome | Refused, now: float) -> None:
        """The shard says whether it talks with us; if so, everything that is open is asked again. Raises
        ProtocolError."""
        if isinstance(message, Refused):
            self.connection.on_refused(message, now)
        elif self.connection.on_welcome(message, now):
            if self._memory is not None and message.listener:
                self.listener, self.may_share = message.listener, True
            for request in self.requests.values():
                self.ask(request)
            self._repeats = self.connection.session > 1

    def tick(self, now: float) -> bool:
        """Keeps the connection alive. Whether the shard has to be held for lost, at the moment it becomes so."""
        due = self.connection.tick(now)
        if Due.CONNECT in due:
            self._connect()
        if Due.KEEPALIVE in due:
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
        frame, arena = self.outbox.fill(now, most) if self.outbox.queued_slices else None, self.arena
        pull = None
        if self.new_pulls:
            messages = pull_messages(self.new_pulls, self.shard)
            self.new_pulls.clear()
            if (
                messages
                and frame is not None
                and not self._repeats
                and _carries(
                    frame,
                    messages[-1],
                    is_short=arena.memory is not None or frame.nbytes <= CARRIES_PULL_BYTES,
                )
            ):
                pull = messages.pop()
            for message in messages:
                self.say(message)
        if self._repeats:  # What was asked on an earlier connection, and is not repeated, is not wanted any more.
            self.say(Cancel([NOBODY]))
            self._repeats = False
        while frame is not None:
            self.frames_sent += 1
            self.payload_bytes_sent += frame.nbytes
            receipts, self.acknowledge = self.acknowledge[:MAX_RUNS], self.acknowledge[MAX_RUNS:]
            self.sent += 1
            at = [] if arena.memory is None else arena.put(frame)
            push = Push(frame.number, frame.rows(), at, receipts, pull)
            self.outgoing.append(encode(push, None if at else frame.payload(), self.sent))
            most -= frame.nbytes
            if most <= 0 and self.outbox.queued_slices:
                return True
            frame, pull = self.outbox.fill(now, most) if self.outbox.queued_slices else None, None
        while self.acknowledge:  # No frame leaves that could say it.
            receipts, self.acknowledge = self.acknowledge[:MAX_RUNS], self.acknowledge[MAX_RUNS:]
            self.say(Acknowledge(receipts))
        return False

    def _connect(self) -> None:
        """A new connection begins, with what the last one may have lost."""
        self.reopen = True
        self.new_pulls.clear()
        self.acknowledge.clear()
        self.listener, self.may_share = b"", False
        again = self.arena.reset()
        self.outbox.shared = False
        for run in self.outbox.requeue(again):
            if not run.owner.ended:
                run.owner.runs[self.shard].append(run)
        session, loopback = self.connection.session, self.outbox.loopback
        self.sent, self.received = 1, 0
        self._greeting = encode(
            msgspec.structs.replace(self.hello, session=session, loopback=loopback), None, self.sent
        )
        self.outgoing = [self._greeting]
