"""One link to a shard: what is sent, acknowledged, and sent again after a break. Pure: the time is a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.client.connection import Connection, Due, LinkState
from weft_kvstore.client.operation import Operation
from weft_kvstore.same_host.memory import SharedFrames, SharedMemory
from weft_kvstore.settings import LinkSettings, is_loopback
from weft_kvstore.wire.codec import encode
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
        self.shared = SharedFrames(memory)
        """What the shard reads in the client's memory."""
        self.peer_memory: Array | None = None
        """The shard's memory, while each has the other's, if it shares any."""
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
        self.shared_bytes_sent = 0
        self.shared_bytes_received = 0
        self.hello = hello
        self._greeting: list[Buffer] = []
        """The connection's first message, said again until it is answered."""
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
        self.peer_memory = peer_memory
        self.outbox.share(shared=taken)

    def on_handshake(self, message: Welcome | Refused, now: float) -> Sequence[SentFragment]:
        """The shard says whether it talks with us; if so, everything that is open is asked again. What of earlier
        connections has arrived and was to be read. Raises ProtocolError."""
        if isinstance(message, Refused):
            self.connection.on_refused(message, now)
        elif self.connection.on_welcome(message, now):
            if self.shared.memory is not None and message.listener:
                self.listener, self.may_share = message.listener, True
            for request in self.requests.values():
                self.ask(request)
            self._repeats = self.connection.session > 1
            return self.shared.release_all()
        return ()

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
        outbox = self.outbox
        frame = outbox.fill(now, most) if outbox.queued_slices else None
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
                    is_short=outbox.shared or frame.nbytes <= CARRIES_PULL_BYTES,
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
            at = self.shared.put(frame) if outbox.shared else []
            if at:
                self.shared_bytes_sent += frame.nbytes
            push = Push(frame.number, frame.rows(), at, receipts, pull)
            self.outgoing.append(encode(push, None if at else frame.payload(), self.sent))
            most -= frame.nbytes
            if most <= 0 and outbox.queued_slices:
                return True
            frame, pull = outbox.fill(now, most) if outbox.queued_slices else None, None
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
        self.share(None, taken=False)
        for run in self.outbox.requeue():
            if not run.owner.ended:
                run.owner.runs[self.shard].append(run)
        self.sent, self.received = 1, 0
        connection = self.connection
        hello = msgspec.structs.replace(
            self.hello, session=connection.session, loopback=self.outbox.loopback, boot=connection.boot
        )
        self._greeting = encode(hello, None, self.sent)
        self.outgoing = [self._greeting]
