"""A client's link to one shard: its connection's life, and what is under way on it. Pure: the time is a parameter.

| State    | What comes                                 | Then                                                |
|----------|--------------------------------------------|-----------------------------------------------------|
| DOWN     | the time to try again                      | GREETING: a new socket, and a Hello on it           |
| GREETING | Welcome                                    | OPEN                                                |
| GREETING | Refused, which may pass                    | DOWN, before the first Welcome; else refused        |
| both     | disconnected, or no Hello is known         | DOWN; the time to try again doubles                 |
| both     | half the silence without a word            | GREETING: a new socket, and a Hello on it           |
| any      | any other Refused, another boot, nonsense  | refused, for good: everything fails, no more tries  |
| any      | the silence without a word since OPEN      | lost besides: everything fails, until a Welcome     |

Both are GREETING and OPEN. That the link is lost is no state of the connection: it goes on trying.

A connection that breaks may have lost anything. The next one begins with a Hello; after its Welcome, all pulls and
barriers that are not answered are asked again, and all slices that are not acknowledged are sent again. The shard takes
each in once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import Final

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.operations.operation import Operation, PullOperation, Request, SentRun
from weft_kvstore.same_host.link_memory import LinkMemory
from weft_kvstore.settings import LinkSettings, is_loopback
from weft_kvstore.wire.cargo import SentEntry
from weft_kvstore.wire.codec import ProtocolError, encode, payload_bytes
from weft_kvstore.wire.messages import (
    MAX_RUNS,
    Acknowledge,
    Because,
    Bye,
    Hello,
    Message,
    Ping,
    Pull,
    Push,
    RefusalCode,
    Refused,
    Values,
    Welcome,
    Why,
)
from weft_kvstore.wire.outbox import Outbox, OutFrame, Piece, parts_of

FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 0.5

UNREAD: Final = "the shard has it where it lies, and reads it once the other slots have pushed the step"

_PASSING: Final = frozenset({RefusalCode.UNKNOWN_JOB, RefusalCode.BUSY})
"""Refusals that may pass: the shard is about to open the job, or to forget a process that died."""


class LinkState(Enum):
    DOWN = "down"
    GREETING = "greeting"
    OPEN = "open"


class ClientLink:
    """`reopen` tells the hands to make a new socket before they send what is in `outgoing`.

    `lost` is why nothing can be asked now; it passes when the same shard process welcomes us again. `refused` is why
    nothing ever can; `at_fault` says that it is this client's doing. `requests` are pulls and barriers that are not
    answered, by number, in the order asked.
    """

    def __init__(self, shard: int, endpoint: str, hello: Hello, settings: LinkSettings, now: float) -> None:
        self.shard = shard
        self.name = f"shard {shard} at {endpoint}"
        self.state = LinkState.DOWN
        self.outbox: Outbox[SentEntry, Operation] = Outbox(settings, loopback=is_loopback(endpoint))
        self.requests: dict[int, Request] = {}
        self.outgoing: list[list[Buffer]] = []
        self.reopen = False
        self.lost: str | None = None
        self.refused: str | None = None
        self.at_fault = False
        self.session = 0
        self.frames_sent = 0
        self.frames_received = 0
        self.payload_bytes_sent = 0
        self.payload_bytes_received = 0
        self._hello = hello
        self._settings = settings
        self._ping_s = settings.ping_s
        self._boot: bytes | None = None
        self._heard = now
        self._opened = now
        self._pinged = now
        self._retry_at = now
        self._retry_s = FIRST_RETRY_S
        self._reason = "it did not answer"
        self._new_pulls: list[PullOperation] = []
        self._acknowledge: list[int] = []
        self.door: tuple[bytes, bytes] | None = None
        self._memory: LinkMemory | None = None
        self._had_memory = False
        self.shared_bytes_sent = 0
        self.shared_bytes_received = 0
        self._in_arena: dict[int, tuple[LinkMemory, int] | None] = {}
        self._held: dict[int, Sequence[Piece[SentEntry, Operation]]] = {}
        self._left: list[tuple[LinkMemory, int]] = []
        self._read_before = False
        """Whether arrays of the caller may be read still through an earlier connection: `_late` has arrived since."""
        self._late: list[Piece[SentEntry, Operation]] = []

    def ask(self, request: Request) -> None:
        """Begins a pull or a barrier on this shard."""
        self.requests[request.number] = request
        if self.state is LinkState.OPEN:
            request.make(self)

    @property
    def owes_receipts(self) -> bool:
        """Whether frames have arrived of which the shard has not been told."""
        return bool(self._acknowledge)

    def forget(self, request: Request) -> None:
        self.requests.pop(request.number, None)

    def pull(self, operation: PullOperation) -> None:
        """Asks for what a pull wants, with the next `flush`."""
        self._new_pulls.append(operation)

    def put(self, runs: Iterable[SentRun]) -> None:
        """Queues these to be sent."""
        for run in runs:
            self.outbox.put(run)

    def say(self, message: Message) -> None:
        """Sends a control message now; it goes before all data that has not left. Nothing while there is no link."""
        if self.state is LinkState.OPEN:
            self.outgoing.append(encode(message))

    @property
    def memory(self) -> LinkMemory | None:
        """The arena, while the shard has it."""
        return self._memory

    @memory.setter
    def memory(self, memory: LinkMemory | None) -> None:
        self._memory = memory
        self._had_memory = self._had_memory or memory is not None
        self.outbox.shared = memory is not None

    def lost_memory(self, values: Values) -> bool:
        """Whether a frame lies in an arena that the shard had and has no more: the connection is about to end."""
        return self._had_memory and self._memory is None and (values.at is not None or bool(values.place))

    def payload_of(self, values: Values, payload: memoryview) -> memoryview:
        """Where the payload of a frame of values is. Raises ProtocolError."""
        if self.memory is None and (values.at is not None or values.place):
            raise ProtocolError(f"Values.at: {values.at}, the shard has no arena")
        if values.at is None or self.memory is None:
            return payload
        return self.memory.payload(values.at, payload_bytes(values))

    def arrived(self, values: Values) -> None:
        """A frame of values was copied."""
        total = sum(values.nbytes)
        in_message = payload_bytes(values) if values.at is None else 0
        self.frames_received += 1
        self.payload_bytes_received += total
        self.shared_bytes_received += total - in_message
        self._acknowledge.append(values.frame)

    def acknowledged(self, frame: int, now: float) -> Sequence[Piece[SentEntry, Operation]]:
        """A frame has arrived: what of it has nothing more to wait for. Raises ProtocolError.

        What lies in the caller's own arrays waits until it was read; what was copied, and is the store's, does not.
        """
        pieces = self.outbox.acknowledge(frame, now)
        if frame not in self._in_arena:
            if not self._read_before:
                return pieces
            self._late += [one for one in pieces if one.run.entry.place]
            return [one for one in pieces if not one.run.entry.place]
        held = self._held[frame] = [one for one in pieces if one.run.entry.place]
        for one in held:
            one.run.owner.because[self.shard] = UNREAD
        return [one for one in pieces if not one.run.entry.place]

    def released(self, frame: int, now: float) -> Sequence[Piece[SentEntry, Operation]]:
        """What a frame has in the arena is read no more, so it has arrived; 0: what earlier connections have. Raises
        ProtocolError."""
        if not frame:
            left, self._left = self._left, []
            for memory, offset in left:
                memory.give(offset)
            late, self._late, self._read_before = self._late, [], False
            return late
        if frame not in self._in_arena:
            raise ProtocolError(f"Released.frame: {frame} is not in the arena")
        staged = self._in_arena.pop(frame)
        pieces = self._held.pop(frame) if frame in self._held else self.outbox.acknowledge(frame, now)
        if staged is not None:
            staged[0].give(staged[1])
        return pieces

    def explain(self, message: Because) -> None:
        """The shard says what a request waits for."""
        request = self.requests.get(message.request)
        if request is not None:
            request.because[self.shard] = message.reason

    def heard(self, now: float) -> None:
        """Anything came from the shard."""
        if self.state is LinkState.OPEN:
            self._heard = now

    def greeted(self, message: Welcome | Refused, now: float) -> None:
        """The shard says whether it talks with us."""
        if isinstance(message, Welcome):
            self.welcome(message, now)
        else:
            self.turned_away(message, now)

    def welcome(self, message: Welcome, now: float) -> None:
        """The shard talks with us: everything that is open is asked again."""
        if message.session != self.session or self.state is not LinkState.GREETING:
            raise ProtocolError(f"Welcome.session: {message.session} in {self.state.value}, this is {self.session}")
        if self._boot not in (None, message.boot):
            self.refused = f"{self.name} has started anew and has lost its values"
            return
        self._boot = message.boot
        self.state = LinkState.OPEN
        self.lost = None
        self.at_fault = False
        self._heard = now
        self._retry_s = FIRST_RETRY_S
        self._ping_s = min(self._settings.ping_s, message.silence_ms / 4000)
        if self._settings.same_host and message.door:
            self.door = message.door, message.ticket
        for request in self.requests.values():
            request.make(self)

    def turned_away(self, message: Refused, now: float) -> None:
        """The shard will not talk: now, or never."""
        if message.code in _PASSING and self._boot is None:
            self._reason = message.reason
            self.at_fault = True
            self._down(now)
        elif message.code is RefusalCode.UNKNOWN_LINK:
            self.disconnected(now)
        else:
            self.refused = f"{self.name}: {message.reason}"
            self.at_fault = message.code not in {RefusalCode.CLOSED, RefusalCode.UNKNOWN_JOB}

    def disconnected(self, now: float) -> None:
        """The connection has broken."""
        if self.state is not LinkState.DOWN:
            self._down(now)

    def tick(self, now: float) -> str | None:
        """Keeps the connection alive. Returns why the shard has to be held for lost, at the moment it becomes so."""
        if self.refused is not None:
            return None
        if self.state is LinkState.DOWN and now >= self._retry_at:
            self._connect(now)
        silence = self._settings.silence_s
        if self.state is not LinkState.DOWN and now - max(self._heard, self._opened) >= silence / 2:
            self._connect(now)
        if self.state is LinkState.OPEN and now - self._pinged >= self._ping_s:
            self._pinged = now
            self.say(Ping())
        if self.lost is None and now - self._heard >= silence:
            self.lost = f"{self.name} has been silent for {now - self._heard:.1f} s ({self._reason})"
            return self.lost
        return None

    def next_tick(self) -> float:
        """When `tick` has something to do again."""
        if self.refused is not None:
            return float("inf")
        silence = self._settings.silence_s
        times = [self._retry_at] if self.state is LinkState.DOWN else [max(self._heard, self._opened) + silence / 2]
        if self.state is LinkState.OPEN:
            times.append(self._pinged + self._ping_s)
        if self.lost is None:
            times.append(self._heard + silence)
        return min(times)

    def flush(self, now: float) -> None:
        """Puts requests, acknowledgements and as many frames as credit allows into `outgoing`."""
        if self.state is not LinkState.OPEN:
            return
        if self._new_pulls:
            shared = self.memory is not None
            messages = _pull_messages(self._new_pulls, self.shard, shared=shared)
            self.outgoing += [encode(message) for message in messages]
            self._new_pulls.clear()
        while (frame := self.outbox.fill(now)) is not None:
            self.frames_sent += 1
            self.payload_bytes_sent += frame.nbytes
            self.outgoing.append(self._push(frame))
        while self._acknowledge:  # No frame leaves that could say it.
            self.say(Acknowledge(self._receipts()))

    def _receipts(self) -> list[int]:
        """The frames of values that have arrived and of which the shard has not been told."""
        found, self._acknowledge = self._acknowledge[:MAX_RUNS], self._acknowledge[MAX_RUNS:]
        return found

    def ask_why(self, numbers: Iterable[int]) -> None:
        """Asks the shard what these requests wait for, the first 4,096 of them."""
        here = [number for number in numbers if number in self.requests]
        if here:
            self.say(Why(here[:MAX_RUNS]))

    def withdraw(self, runs: Iterable[SentRun]) -> None:
        """These need not be sent any more."""
        for run in runs:
            self.outbox.cancel(run)

    def close(self) -> None:
        self.say(Bye())

    def _connect(self, now: float) -> None:
        self.session += 1
        self.state = LinkState.GREETING
        self.reopen = True
        self._opened = self._pinged = now
        self._new_pulls.clear()
        self._acknowledge.clear()
        # What earlier connections brought there may be read still, and is not written before the shard says so.
        self.door = self.memory = None
        self._had_memory = False
        self._left += [staged for staged in self._in_arena.values() if staged is not None]
        self._read_before = self._read_before or bool(self._in_arena)
        again = [*chain(*self._held.values()), *self._late]
        for one in again:
            one.run.owner.because.pop(self.shard, None)
        self._in_arena, self._held, self._late = {}, {}, []
        for run in self.outbox.requeue(again):
            run.owner.resent(self.shard, run)
        hello = Hello(
            job=self._hello.job,
            term=self._hello.term,
            slot=self._hello.slot,
            incarnation=self._hello.incarnation,
            process=self._hello.process,
            session=self.session,
            description=self._hello.description,
            loopback=self.outbox.loopback,
        )
        self.outgoing = [encode(hello)]

    def _push(self, frame: OutFrame[SentEntry, Operation]) -> list[Buffer]:
        """A frame as a message; its bytes are in the arena where that can be."""
        memory = self.memory
        if memory is None:
            return encode(_push_message(frame, self._receipts()), frame.payload())
        placed = any(one.run.entry.place for one in frame.pieces)
        pieces = [one for one in frame.pieces if not one.run.entry.place] if placed else frame.pieces
        nbytes = sum([one.stop - one.start for one in pieces])
        parts = parts_of(pieces)
        at = memory.lay(parts, nbytes)
        message = _push_message(frame, self._receipts(), at, placed=placed)
        if at is None and not placed:
            return encode(message, parts[0] if len(parts) == 1 else b"".join(parts))
        self._in_arena[frame.number] = None if at is None else (memory, at)
        self.shared_bytes_sent += frame.nbytes if at is not None else frame.nbytes - nbytes
        return encode(message, None if at is not None or not parts else b"".join(parts))

    def _down(self, now: float) -> None:
        self.state = LinkState.DOWN
        self._retry_at = now + self._retry_s
        self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)


def _pull_messages(pulls: Iterable[PullOperation], shard: int, *, shared: bool) -> Iterator[Pull]:
    """Asks for what is still wanted; what one pull asks for is in one message. `shared`: the shard has the arena."""
    message = _no_pull()
    for pull in pulls:
        if pull.ended:
            continue
        asks = pull.asks(shard)
        if len(message.request) + len(asks) > MAX_RUNS:
            yield _short(message)
            message = _no_pull()
        number, asked, chunks = pull.number, pull.asked, pull.chunks(shard)
        state, reading = int(asked.names is not None), int(asked.reading)
        compressed = int(pull.may_be_compressed)
        for lot, first, count in asks:
            message.request.append(number)
            message.lot.append(lot)
            message.version.append(asked.version)
            message.state.append(state)
            message.reading.append(reading)
            message.first.append(first)
            message.count.append(count)
            message.chunks.append(chunks)
            message.place.append(int(shared and pull.in_place))
            message.compressed.append(compressed)
    if message.request:
        yield _short(message)


def _short(message: Pull) -> Pull:
    if not any(message.place):
        message.place.clear()
    return message


def _no_pull() -> Pull:
    return Pull([], [], [], [], [], [], [], [], [], [])


def _push_message(
    frame: OutFrame[SentEntry, Operation], acknowledge: list[int], at: int | None = None, *, placed: bool = False
) -> Push:
    entries, first, count, nbytes = zip(*frame.runs(), strict=True)
    cargo, request, lot, step, chunks, place = map(list, zip(*entries, strict=True))
    return Push(
        frame.number,
        cargo,
        request,
        lot,
        step,
        list(first),
        list(count),
        chunks,
        list(nbytes),
        at,
        [int(one) for one in place] if placed else [],
        acknowledge,
    )
