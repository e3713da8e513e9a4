"""A client as its shard sees it: what it asks for, and what is on its way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from weft_kvstore.arrays import Buffer
from weft_kvstore.bucket.steps import AnswerEntry, AnswerSegment, PullWait
from weft_kvstore.bucket.values import Pin
from weft_kvstore.same_host.memory import SharedFrames
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.codec import encode
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    Acknowledge,
    Done,
    Failed,
    FailureCode,
    Hello,
    Message,
    Released,
    Values,
    Welcome,
)
from weft_kvstore.wire.outbox import Outbox

# --- A connection that has said Hello, as its shard sees it -----------------------------------------------------------


Outgoing: TypeAlias = tuple[bytes, list[Buffer]]
"""A message, and the identity of the connection on which it leaves."""

MAX_OPEN_PULLS: Final = 1 << 16
"""Pulls, each counted as often as it has ranges, that one client may have open: two kinds for each of 32,768 keys.
With each step that applies the ranges of all that wait are looked at."""

MAX_OPEN_MEASURES: Final = 64
"""The same for steps that it asks of: a worker has two under way."""

MAX_FAILED: Final = 1 << 12
"""Pulls that failed which one client may leave uncancelled; of more the earliest are forgotten."""

MAX_IDS_BYTES: Final = 1 << 28
"""Ids of rows that one connection's open pulls may hold: eight of the largest that a client makes."""


MAX_QUEUED_COPIES: Final = 16
"""How often one connection may have all of a job's values waiting to be sent; a client that asks for more is broken."""

MAX_QUEUED_TABLES: Final = 2
"""The same for its tables, whose rows are copied when they are asked for."""


SHARD_COUNTERS: Final = (
    "received_bytes",
    "shared_memory_received_bytes",
    "shared_memory_sent_bytes",
    "received_frames",
    "sent_frames",
    "malformed_messages",
    "refused_requests",
    "unknown_link_messages",
)
"""The shard's metrics that `counts` has."""


def _popped(numbers: list[int]) -> list[int]:
    """Removes as many of these as a message may have."""
    popped = numbers[:MAX_ENTRIES]
    del numbers[:MAX_ENTRIES]
    return popped


class Peer:
    """One client process of a slot, over all its connections. `identity` is its connection's; None while it has none.

    `pulls` are those not answered, `open_entries` the ranges that they ask for, `ids_bytes` what their ids take. They
    outlive a connection, as what waits in `outbox` does: on the next one the client repeats those that it still waits
    for, and no others of `unrepeated` are wanted. `failed` pulls are kept until the client, which has heard of it, has
    cancelled them: if it repeats one, that fails again. `acknowledge` are the frames not yet acknowledged, `done`
    the requests carried out of which the client has not heard, `measures` the requests for what steps amount to, with
    the step.

    `shared_frames` are what a client of this host reads in the shard's memory, `released` what the shard reads no more
    in the client's. `connections` are the identities of those that the socket may still have: what left on them may be
    read. What passes is added to `counts`.
    """

    def __init__(self, hello: Hello, shard: JobShard, settings: LinkSettings, counts: dict[str, int]) -> None:
        self.slot = hello.slot
        self.shard = shard
        self.counts = counts
        self.outbox: Outbox[AnswerEntry, Pin | None] = Outbox(settings, loopback=hello.loopback)
        self.shared_frames = SharedFrames(shard.shared_memory)
        self.connections: set[bytes] = set()
        self.pulls: dict[int, PullWait] = {}
        self.failed: dict[int, Failed] = {}
        self.unrepeated: set[int] = set()
        self.changed = 0
        """The last request that has changed hyper-parameters."""
        self.open_entries = 0
        self.ids_bytes = 0
        nbytes = sum(int(one.spec.partition.bounds[-1]) for one in shard.buckets.values())
        # Were every row there; of a growing table, those that one call may name.
        table_bytes = sum(one.layout.bytes_on(shard.shard) for one in shard.tables.values())
        self.most_queued = MAX_QUEUED_COPIES * nbytes + MAX_QUEUED_TABLES * table_bytes
        """Bytes of values that may wait for it."""

    def connect(self, identity: bytes, hello: Hello, welcome: Welcome, number: int, now: float) -> None:
        """A connection begins, with its message `number`. The process reads nothing of its last one any more."""
        self.identity: bytes | None = identity
        self.connections.add(identity)
        self.hello = hello
        self.heard = now
        """When the last message came."""
        self.sent = 0
        """Messages that were sent on this connection: the number of the last one."""
        self.received = number
        """The number of the last message that came on it."""
        self.welcome = welcome
        """What its Hello was answered with."""
        self.acknowledge: list[int] = []
        self.done: list[int] = []
        self.released: list[int] = []
        self.measures: dict[int, int] = {}
        self.outbox.share(shared=False)
        self.shared_frames.release_all()

    def disconnect(self) -> None:
        """The connection is gone. What it has not brought waits for the process's next one."""
        self.identity = None
        self.outbox.requeue()
        self.unrepeated = {*self.pulls, *self.outbox.waiting, *self.failed}

    def write(self, outgoing: list[Outgoing], now: float) -> None:
        """Adds what can leave now: what was carried out since the last time, as many frames of values as credit allows,
        and acknowledgements, in frames of values or behind them."""
        identity = self.identity
        if identity is None:
            return
        for kind, numbers in ((Done, self.done), (Released, self.released)):
            while numbers:
                outgoing.append((identity, self.say(kind(_popped(numbers)))))
        outbox = self.outbox
        while outbox.queued_slices and (frame := outbox.fill(now)) is not None:
            at = self.shared_frames.put(frame) if outbox.shared else []
            if at:
                self.counts["shared_memory_sent_bytes"] += frame.nbytes
            self.sent += 1
            self.counts["sent_frames"] += 1
            receipts, self.acknowledge = self.acknowledge[:MAX_ENTRIES], self.acknowledge[MAX_ENTRIES:]
            values = Values(frame.number, frame.rows, at, receipts)
            outgoing.append((identity, encode(values, None if at else frame.payload(), self.sent)))
        while self.acknowledge:
            outgoing.append((identity, self.say(Acknowledge(_popped(self.acknowledge)))))

    def say(self, message: Message) -> list[Buffer]:
        """The next message of this connection."""
        self.sent += 1
        return encode(message, None, self.sent)

    def forget(self, wait: PullWait) -> None:
        """A pull is not open any more."""
        if self.pulls.pop(wait.request, None) is not None:
            self.ids_bytes -= 0 if wait.rows is None else wait.rows.nbytes
            self.open_entries -= wait.entries

    def arrived(self, frames: Sequence[int], now: float) -> None:
        """The client has acknowledged frames. Raises ProtocolError for one that is not under way."""
        for frame in frames:
            _release(self.outbox.acknowledge(frame, now))
            if self.shared_frames.frames:
                self.shared_frames.release(frame)

    def fail(self, request: int, code: FailureCode, reason: str) -> Failed:
        """A request cannot be answered, which the message says."""
        failed = Failed(request, code, reason[:2048])
        is_pull = request in self.pulls
        self.cancel(request)
        if is_pull:
            self.failed[request] = failed
            if len(self.failed) > MAX_FAILED:  # The client does not cancel them.
                del self.failed[next(iter(self.failed))]
        return failed

    def cancel(self, *requests: int) -> None:
        """The client waits for these no longer: what of them has not left will not."""
        for request in requests:
            self.measures.pop(request, None)
            self.failed.pop(request, None)
            wait = self.pulls.get(request)
            if wait is not None:
                self.forget(wait)
                wait.drop(self.shard.all_buckets)
            _release(self.outbox.cancel(request))

    def close(self) -> None:
        """The process is gone, or replaced: nobody comes back for what it has asked for. What left may be read still,
        and is not written before `release`."""
        self.identity = None
        for wait in self.pulls.values():
            wait.drop(self.shard.all_buckets)
        self.pulls.clear()
        self._left, unsent = self.outbox.clear()
        _release(unsent)

    def release(self) -> None:
        """Nothing of what left for a process that is gone is read any more."""
        _release(self._left)
        self.shared_frames.release_all()


def _release(segments: Iterable[AnswerSegment]) -> None:
    for one in segments:
        if one.owner is not None:
            one.owner.release(one.first, one.count)
