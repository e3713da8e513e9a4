"""A client's link to one shard: what is asked of it, and what is under way. Pure: the time is a parameter.

A connection that breaks may have lost anything. The next one begins with a Hello; after its Welcome, all pulls and
barriers that are not answered are asked again, and all slices that are not acknowledged are sent again. The shard takes
each in once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.client.arena_frames import ArenaFrames
from weft_kvstore.client.connection import Connection, Due, LinkState
from weft_kvstore.client.link_messages import SentPiece, pull_messages, push_message
from weft_kvstore.operations.operation import AskOperation, Operation, PullOperation, SentRun
from weft_kvstore.same_host.link_memory import LinkMemory
from weft_kvstore.settings import LinkSettings, is_loopback
from weft_kvstore.wire.cargo import SentEntry
from weft_kvstore.wire.codec import encode, payload_bytes
from weft_kvstore.wire.messages import (
    MAX_RUNS,
    Acknowledge,
    Because,
    Bye,
    Hello,
    Message,
    Ping,
    Refused,
    Values,
    Welcome,
    Why,
)
from weft_kvstore.wire.outbox import Outbox


class ClientLink:
    """`reopen` tells the hands to make a new socket before they send what is in `outgoing`; `door` that the arena can
    be brought there, with its ticket.

    `requests` are pulls and barriers that are not answered, by number, in the order asked.
    """

    def __init__(self, shard: int, endpoint: str, hello: Hello, settings: LinkSettings, now: float) -> None:
        self.shard = shard
        self.name = f"shard {shard} at {endpoint}"
        self.connection = Connection(self.name, settings, now)
        self.outbox: Outbox[SentEntry, Operation] = Outbox(settings, loopback=is_loopback(endpoint))
        self.arena = ArenaFrames(shard)
        self.requests: dict[int, AskOperation] = {}
        self.outgoing: list[list[Buffer]] = []
        self.reopen = False
        self.door: tuple[bytes, bytes] | None = None
        self.frames_sent = 0
        self.frames_received = 0
        self.payload_bytes_sent = 0
        self.payload_bytes_received = 0
        self._hello = hello
        self._same_host = settings.same_host
        self._new_pulls: list[PullOperation] = []
        self._acknowledge: list[int] = []

    def ask(self, request: AskOperation) -> None:
        """Begins a pull or a barrier on this shard."""
        self.requests[request.number] = request
        if self.connection.state is LinkState.OPEN:
            request.make(self)

    @property
    def owes_receipts(self) -> bool:
        """Whether frames have arrived of which the shard has not been told."""
        return bool(self._acknowledge)

    def forget(self, request: AskOperation) -> None:
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
        if self.connection.state is LinkState.OPEN:
            self.outgoing.append(encode(message))

    def share(self, memory: LinkMemory | None) -> None:
        """The shard has mapped the client's arena, or has it no more."""
        self.arena.memory = memory
        self.outbox.shared = memory is not None

    def arrived(self, values: Values) -> None:
        """A frame of values was copied."""
        total = sum(values.nbytes)
        in_message = payload_bytes(values) if values.at is None else 0
        self.frames_received += 1
        self.payload_bytes_received += total
        self.arena.bytes_received += total - in_message
        self._acknowledge.append(values.frame)

    def acknowledged(self, frame: int, now: float) -> Sequence[SentPiece]:
        """A frame has arrived: what of it has nothing more to wait for. Raises ProtocolError."""
        pieces = self.outbox.acknowledge(frame, now)
        return self.arena.arrived(frame, pieces) if self.arena.in_use else pieces

    def released(self, frame: int, now: float) -> Sequence[SentPiece]:
        """What a frame has in the arena is read no more, so it has arrived; 0: what earlier connections have. Raises
        ProtocolError."""
        if not frame:
            return self.arena.released_before()
        pieces = self.arena.released(frame)
        return self.outbox.acknowledge(frame, now) if pieces is None else pieces

    def explain(self, message: Because) -> None:
        """The shard says what a request waits for."""
        request = self.requests.get(message.request)
        if request is not None:
            request.because[self.shard] = message.reason

    def greeted(self, message: Welcome | Refused, now: float) -> None:
        """The shard says whether it talks with us; if so, everything that is open is asked again. Raises
        ProtocolError."""
        if isinstance(message, Refused):
            self.connection.turn_away(message, now)
        elif self.connection.welcome(message, now):
            if self._same_host and message.door:
                self.door = message.door, message.ticket
            for request in self.requests.values():
                request.make(self)

    def tick(self, now: float) -> bool:
        """Keeps the connection alive. Whether the shard has to be held for lost, at the moment it becomes so."""
        due = self.connection.tick(now)
        if Due.CONNECT in due:
            self._connect()
        if Due.PING in due:
            self.say(Ping())
        return Due.LOST in due

    def flush(self, now: float) -> None:
        """Puts requests, acknowledgements and as many frames as credit allows into `outgoing`."""
        if self.connection.state is not LinkState.OPEN:
            return
        if self._new_pulls:
            messages = pull_messages(self._new_pulls, self.shard, shared=self.arena.memory is not None)
            self.outgoing += [encode(message) for message in messages]
            self._new_pulls.clear()
        while (frame := self.outbox.fill(now)) is not None:
            self.frames_sent += 1
            self.payload_bytes_sent += frame.nbytes
            memory = self.arena.memory
            if memory is None:
                self.outgoing.append(encode(push_message(frame, self._receipts()), frame.payload()))
            else:
                self.outgoing.append(self.arena.push(memory, frame, self._receipts()))
        while self._acknowledge:  # No frame leaves that could say it.
            self.say(Acknowledge(self._receipts()))

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

    def _receipts(self) -> list[int]:
        """The frames of values that have arrived and of which the shard has not been told."""
        found, self._acknowledge = self._acknowledge[:MAX_RUNS], self._acknowledge[MAX_RUNS:]
        return found

    def _connect(self) -> None:
        """A new connection begins, with what the last one may have lost."""
        self.reopen = True
        self._new_pulls.clear()
        self._acknowledge.clear()
        self.door = None
        again = self.arena.begin_anew()
        self.outbox.shared = False
        for run in self.outbox.requeue(again):
            run.owner.resent(self.shard, run)
        session, loopback = self.connection.session, self.outbox.loopback
        self.outgoing = [encode(msgspec.structs.replace(self._hello, session=session, loopback=loopback))]
