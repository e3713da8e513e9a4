"""One link to a shard: what is sent, acknowledged, and sent again after a break. Pure: the time is a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.client.operation import Operation, SentSegment
from weft_kvstore.errors import StoreError, StoreLostError, StoreRefusedError
from weft_kvstore.same_host.memory import SharedFrames, SharedMemory
from weft_kvstore.settings import LinkSettings, is_loopback
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    NO_REQUEST,
    Acknowledge,
    Cancel,
    Hello,
    Message,
    Ping,
    Pull,
    Push,
    RefusalCode,
    Refused,
    SentEntry,
    Welcome,
)
from weft_kvstore.wire.outbox import Outbox, OutFrame

# --- Pulls, and frames of what is pushed, as the messages that say them -----------------------------------------------


CARRIES_PULL_BYTES: Final = 1 << 16
"""A frame of at most so many bytes carries a pull: a message of its own would cost more than the wait for them."""


def request_messages(requests: Iterable[Operation], shard: int) -> list[Message]:
    """The messages that make these requests, where they are still wanted. Pulls share messages."""
    messages: list[Message] = []
    pull, ranges_left = Pull([], 0), 0
    for request in requests:
        if request.ended and not request.outlives_failure:
            continue
        if request.is_request:
            messages += request.ask(shard)
            continue
        ranges = request.asked[shard]
        if len(ranges) > ranges_left or request.priority != pull.priority:
            pull, ranges_left = Pull([], request.priority), MAX_ENTRIES
            messages.append(pull)
        ranges_left -= len(ranges)
        state, compressed = request.names is not None, request.may_be_compressed
        pull.asks.append((request.number, request.version, state, request.reading, compressed, ranges))
    return messages


def _carries(frame: OutFrame[SentEntry, Operation], pull: Pull, *, is_short: bool) -> bool:
    """Whether a frame carries a pull. A frame of rows always may, as the shard reads its pull first. Any other has to
    be short, and of calls that were all made before the pull: the shard answers after it has handled the frame, and a
    pull must not see a push that was made after it. Calls are numbered in their order."""
    last, first = 0, pull.asks[0][0]
    for one in frame.segments:  # Loops, as a generator would be a frame of its own for each.
        if one.entry.chunks:
            return True
        last = max(last, one.request)
    for ask in pull.asks:
        first = min(first, ask[0])
    return is_short and last <= first


# --- The life of a client's connection to one shard -------------------------------------------------------------------
# State     | What comes                                 | Then
# ----------|--------------------------------------------|-----------------------------------------------------
# DOWN      | the time to try again                      | HANDSHAKE: a new session, its socket, and a Hello on it
# HANDSHAKE | a fiftieth of the silence without a word   | the Hello is said again
# HANDSHAKE | Welcome                                    | OPEN
# HANDSHAKE | Refused: the slot is busy, no Welcome yet  | DOWN: the shard is about to forget a process that died
# HANDSHAKE | it is broken off                           | DOWN
# HANDSHAKE | nonsense, or another kind of link, after   | DOWN: it is of a proxy, or of who has the shard's address
#           | an earlier Welcome                         |
# HANDSHAKE | the keys do not fit, or the kind of link   | REFUSED
# OPEN      | the time of a ping                         | a Ping
# both      | disconnected, or no Hello is known         | DOWN; the time to try again doubles
# both      | Refused: the job is not open               | DOWN: the shard is about to open it
# both      | some seconds without a word                | HANDSHAKE, as from DOWN
# both      | any other Refused, another boot, nonsense  | REFUSED
# REFUSED   | anything                                   | nothing any more
#
# Both are HANDSHAKE and OPEN. `trouble` says why it is not OPEN, as far as that is known, and `lost` why operations
# fail that the shard has something of: after the silence without a word, until a Welcome, and in REFUSED.


FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 0.5

HELLOS: Final = 50
"""A Hello is said again so often within the silence, until it is answered: it, or its answer, may have been lost."""

AFTER_LOSS: Final = (
    "restart all shards, connect every slot with step= and restore the values that you have saved after that step"
)
"""What a user can do then: the other shards have later values, which would not fit."""


class LinkState(Enum):
    DOWN = "down"
    HANDSHAKE = "handshake"
    OPEN = "open"
    REFUSED = "refused"


LINK_COUNTERS: Final = (
    "bytes_sent",
    "bytes_received",
    "payload_bytes_sent",
    "payload_bytes_received",
    "frames_sent",
    "frames_received",
    "shared_bytes_sent",
    "shared_bytes_received",
)
"""The fields of `LinkStatistics` that only grow."""


class SlotTakenError(StoreRefusedError):
    """Another process has the slot."""


# --- A client's link to one shard: what is asked of it, and what is under way -----------------------------------------
# A connection that breaks may have lost any message. The next one begins with a Hello. After its Welcome, all requests
# that are not answered and all slices that are not acknowledged are sent again. The shard counts each once.


class ClientLink:
    """`session` counts connections from 1: one in HANDSHAKE whose session has no socket needs one before what is in
    `outgoing` is sent. `listener` is where the shard takes the client's memory on this connection, empty where it is
    not given any.

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
        self.state = LinkState.DOWN
        self.session = 0
        self.trouble: StoreError | None = None
        """Operations fail with an error of its type: StoreRefusedError where this client is at fault."""
        self.lost: StoreError | None = None
        self.heard = now
        self.welcome: Welcome | None = None
        """The last one. Only the shard process that it is from has what was sent."""
        self._settings = settings
        self._ping_s = settings.ping_s
        self._opened = now
        self._next_at = now
        """When it tries again, or says the Hello again, or a Ping."""
        self._retry_s = FIRST_RETRY_S
        self.outbox: Outbox[SentEntry, Operation] = Outbox(settings, loopback=is_loopback(endpoint))
        self.shared_frames = SharedFrames(memory)
        """What the shard reads in the client's memory."""
        self.peer_memory: Array | None = None
        """The shard's memory, while each has the other's, if it shares any."""
        self.requests: dict[int, Operation] = {}
        self.outgoing: list[list[Buffer]] = []
        self.listener = b""
        self.sent = 0
        """Messages that were sent on this connection: the number of the last one."""
        self.received = 0
        """The number of the last message that came on it."""
        self.counts = dict.fromkeys(LINK_COUNTERS, 0)
        self.hello = msgspec.structs.replace(hello, shard=shard)
        self._hello: list[Buffer] = []
        """The connection's first message, said again until it is answered."""
        self.new_requests: list[Operation] = []
        """Requests to be sent with the next `flush`; a new connection repeats those that are not answered."""
        self.acknowledge: list[int] = []
        """Frames of values that have arrived and are not acknowledged."""

    def say(self, message: Message) -> None:
        """Sends a control message now; it goes before all data that has not left. Nothing while there is no link."""
        if self.state is LinkState.OPEN:
            self.sent += 1
            self.outgoing.append(encode(message, None, self.sent))

    def share(self, peer_memory: Array | None, *, taken: bool) -> None:
        """`taken`: the shard has mapped the client's memory. `peer_memory`: the shard's own, if it shares any."""
        self.peer_memory = peer_memory
        self.outbox.share(shared=taken)

    def on_handshake(self, message: Welcome | Refused, now: float) -> Sequence[SentSegment]:
        """The shard accepts this client, or rejects it, for now or for good. Once it accepts, all open requests are
        sent again. Returns the segments of earlier connections that have arrived and that the shard will not read any
        more. Raises ProtocolError for the Welcome of another connection."""
        if isinstance(message, Refused):
            code, reason = message.code, f"{self.name}: {message.reason}"
            if code is RefusalCode.UNKNOWN_LINK:
                self.disconnected(now)
            elif code is RefusalCode.UNKNOWN_JOB:
                self.disconnected(now, StoreLostError(reason) if self.welcome else StoreRefusedError(reason))
            elif code is RefusalCode.BUSY and self.welcome is None:
                self.disconnected(now, SlotTakenError(reason))
            else:
                self.refuse(StoreLostError(reason) if code is RefusalCode.CLOSED else StoreRefusedError(reason))
            return ()
        if message.session == self.session and self.state is LinkState.DOWN:
            return ()  # It was received, and not handled, when the connection broke.
        if message.session != self.session or self.state is not LinkState.HANDSHAKE:
            raise ProtocolError(f"Welcome.session: {message.session} in {self.state.value}, this is {self.session}")
        if self.welcome is not None and self.welcome.boot != message.boot:
            self.refuse(StoreLostError(f"{self.name} has started anew and has lost its values; {AFTER_LOSS}"))
            return ()
        self.welcome = message
        self.state = LinkState.OPEN
        self.lost = self.trouble = None
        self.heard = now
        self._retry_s = FIRST_RETRY_S
        self._ping_s = min(self._settings.ping_s, message.silence_ms / 4000)
        self._next_at = now + self._ping_s
        self.listener = b"" if self.shared_frames.memory is None else message.listener
        self.new_requests.clear()
        for said in request_messages(self.requests.values(), self.shard):
            self.say(said)
        if self.session > 1:  # Requests of earlier connections that are not repeated are cancelled.
            self.say(Cancel([NO_REQUEST]))
        return self.shared_frames.release_all()

    def tick(self, now: float) -> None:
        """Keeps the connection alive: begins a new one, or says the Hello again, or a Ping. Finds out whether the shard
        is lost."""
        state = self.state
        if state is LinkState.REFUSED:
            return
        is_due = now >= self._next_at
        if (is_due and state is LinkState.DOWN) or now >= self._renewed_at():
            self._connect(now)
        elif is_due and state is LinkState.OPEN:
            self._next_at = now + self._ping_s
            self.say(Ping())
        elif is_due:
            self._next_at = now + self._settings.silence_s / HELLOS
            self.outgoing.append(self._hello)
        if self.lost is None and now - self.heard >= self._settings.silence_s:
            self.lost = StoreLostError(f"{self.name} has been silent for {now - self.heard:.1f} s (it did not answer)")
            self.trouble = self.trouble or self.lost

    def flush(self, now: float, most: float = math.inf) -> bool:
        """Puts requests, acknowledgements and as many frames as credit allows into `outgoing`, `most` bytes of frames
        where no slice is larger. Returns whether more may leave but for `most`."""
        if self.state is not LinkState.OPEN:
            return False
        outbox = self.outbox
        frame = outbox.fill(now, most) if outbox.queued_slices else None
        pull = None
        if self.new_requests:
            messages = request_messages(self.new_requests, self.shard)
            self.new_requests.clear()
            last = messages[-1] if messages else None
            if frame is not None and isinstance(last, Pull):
                is_short = outbox.shared or frame.nbytes <= CARRIES_PULL_BYTES
                if _carries(frame, last, is_short=is_short):
                    pull = last
                    messages.pop()
            for message in messages:
                self.say(message)
        while frame is not None:
            self.counts["frames_sent"] += 1
            self.counts["payload_bytes_sent"] += frame.nbytes
            receipts, self.acknowledge = self.acknowledge[:MAX_ENTRIES], self.acknowledge[MAX_ENTRIES:]
            self.sent += 1
            at = self.shared_frames.put(frame) if outbox.shared else []
            if at:
                self.counts["shared_bytes_sent"] += frame.nbytes
            push = Push(frame.number, frame.rows, at, receipts, pull)
            self.outgoing.append(encode(push, None if at else frame.payload(), self.sent))
            most -= frame.nbytes
            if most <= 0 and outbox.queued_slices:
                return True
            frame, pull = outbox.fill(now, most) if outbox.queued_slices else None, None
        while self.acknowledge:  # No frame leaves that could say it.
            receipts, self.acknowledge = self.acknowledge[:MAX_ENTRIES], self.acknowledge[MAX_ENTRIES:]
            self.say(Acknowledge(receipts))
        return False

    def _connect(self, now: float) -> None:
        """Begins a new connection, on which all is sent again that the last one may have lost."""
        if self.state is not LinkState.DOWN:  # The trouble of earlier connections is out of date.
            self.trouble = self.lost
        self.state = LinkState.HANDSHAKE
        self.session += 1
        self._opened, self._next_at = now, now + self._settings.silence_s / HELLOS
        self.new_requests.clear()
        self.acknowledge.clear()
        self.listener = b""
        self.share(None, taken=False)
        self.outbox.requeue()
        for request, segments in [*self.outbox.waiting.items()]:
            if next(iter(segments)).owner.ended:
                self.outbox.cancel(request)
        self.sent, self.received = 1, 0
        boot, loopback = b"" if self.welcome is None else self.welcome.boot, self.outbox.loopback
        hello = msgspec.structs.replace(self.hello, session=self.session, loopback=loopback, boot=boot)
        self._hello = encode(hello, None, self.sent)
        self.outgoing = [self._hello]

    def disconnected(self, now: float, trouble: StoreError | None = None) -> None:
        """The connection has broken, or could not be made; why, where that is known."""
        if self.state not in {LinkState.DOWN, LinkState.REFUSED}:
            self.state = LinkState.DOWN
            self.trouble = self.lost
            self._next_at = now + self._retry_s
            self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
        if self.state is LinkState.DOWN and trouble is not None:
            self.trouble = trouble

    def refuse(self, trouble: StoreError) -> None:
        """The shard is given up for good."""
        self.state = LinkState.REFUSED
        self.trouble = self.lost = trouble

    def after_stall(self, stall_s: float, now: float) -> None:
        """This process was suspended for so long, and could not hear the shard."""
        self.heard = min(self.heard + stall_s, now)
        self._opened = min(self._opened + stall_s, now)

    def next_tick(self) -> float:
        """When `tick` has something to do again."""
        if self.state is LinkState.REFUSED:
            return math.inf
        lost_at = self.heard + self._settings.silence_s if self.lost is None else math.inf
        return min(self._next_at, self._renewed_at(), lost_at)

    def _renewed_at(self) -> float:
        """When a connection without a word is given up."""
        if self.state is LinkState.DOWN:
            return math.inf
        return max(self.heard, self._opened) + self._settings.renewed_after_s
