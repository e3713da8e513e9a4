"""All that a shard decides: messages and time in, messages out. Pure: no sockets, clocks or threads.

A connection is known by the identity that the socket gives it, and means nothing before its Hello. `outgoing` collects
what is to be sent; `flush` adds acknowledgements and frames, as late as possible, so that what is urgent overtakes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from weft_kvstore.arrays import Buffer
from weft_kvstore.errors import StoreError
from weft_kvstore.same_host.peers import Arenas
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.handlers import Handshake, HyperHandlers, StepHandlers, because, give_up
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links, Outgoing
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import Job, Peer
from weft_kvstore.shard.pushes import Answers, Pushes, asked_pulls
from weft_kvstore.wire.codec import ProtocolError, decode_request
from weft_kvstore.wire.messages import (
    Acknowledge,
    Barrier,
    Bye,
    Cancel,
    Commit,
    Hello,
    Hyper,
    HyperDecide,
    HyperSettle,
    Measure,
    Ping,
    Pong,
    Pull,
    Push,
    RefusalCode,
    Refused,
    Request,
    Why,
)

_log = logging.getLogger("weft.shard")


class ShardCore:
    """A shard's one job, once it is open, and every connection. `boot` is 16 bytes drawn when the process starts.

    `let_go` is called when bytes of an arena are let go, on whatever thread that happens: `flush` is due then.
    """

    def __init__(self, boot: bytes, settings: LinkSettings, *, let_go: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self.links = Links(let_go)
        self.peers = self.links.peers
        self.counts = self.links.counts
        self.work = Merger(Answers(self.links, self.close), priorities=settings.priorities)
        self._handshake = Handshake(self.links, settings, boot)
        self._pushes = Pushes(self.links, self.work)
        self._steps = StepHandlers(self.links, self.work)
        self._hyper = HyperHandlers(self.links, self.work)

    @property
    def job(self) -> Job | None:
        """None before it is open, and once it was closed or has failed."""
        return self.links.job

    @property
    def outgoing(self) -> list[Outgoing]:
        """Messages that are to be sent, with the identities of their connections."""
        return self.links.outgoing

    @outgoing.setter
    def outgoing(self, left: list[Outgoing]) -> None:
        self.links.outgoing = left

    @property
    def arenas(self) -> Arenas | None:
        """Where clients of this host bring their arenas; None where nothing is shared with them."""
        return self.links.arenas.listener

    @arenas.setter
    def arenas(self, listener: Arenas | None) -> None:
        self.links.arenas.listener = listener

    def open(self, shard: JobShard) -> None:
        """Serves a job from now on. Raises StoreError where it has one. May be called on any thread."""
        if self.links.job is not None:
            raise StoreError(
                f"this shard serves job {self.links.job.name!r} already; each job has a process of its own"
            )
        job = Job(shard)
        if shard.gate is not None:
            shard.gate.tell = lambda step: self._steps.tell_measured(job, step)
        self.links.job = job

    def close(self, reason: str) -> None:
        """Drops the job, which is over or cannot go on; its clients are told. What one message brings may fail it
        twice."""
        job = self.links.job
        if job is not None:
            self.work.clear()
            self.links.drop(job, reason)
            job.shard.close()

    def hear(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message. What fails ends its connection, not the others' service."""
        self.counts.bytes_received += sum(map(len, parts))
        try:
            self.receive(identity, parts, now)
        except Exception:  # noqa: BLE001  # a message's outermost frame
            _log.exception("a message of %s failed; its connection is dropped", identity.hex())
            self.links.lose(identity)

    def receive(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message. What is no message, or not from a client of a job here, is counted and answered with Refused."""
        try:
            message, payload = decode_request(parts)
            if isinstance(message, Hello):
                self._handshake.hello(identity, message, now)
                return
            peer = self.peers.get(identity)
            if peer is None:
                self.counts.unknown_links += 1
                self.links.say(identity, Refused(RefusalCode.UNKNOWN_LINK, "no Hello came on this connection"))
                return
            peer.heard = peer.job.heard[peer.slot] = now
            self._handle(peer, message, payload, now)
        except ProtocolError as error:
            self.links.refuse(identity, error)

    def _handle(self, peer: Peer, message: Request, payload: memoryview, now: float) -> None:
        match message:
            case Push():
                self._push(peer, message, payload, now)
            case Pull():
                self._pull(peer, message)
            case Acknowledge():
                self._arrived(peer, message.frame, now)
            case Barrier():
                self._steps.barrier(peer, message)
            case Measure():
                self._steps.measure(peer, message)
            case Commit():
                self._steps.commit(peer, message)
            case Hyper() | HyperDecide() | HyperSettle():
                self._hyper.take(peer, message, now)
            case Cancel():
                peer.cancel_all(message.request)
            case Why():
                for told in because(peer.job.shard, peer, message):
                    self.links.say(peer.identity, told)
            case Ping():
                self.links.say(peer.identity, Pong())
            case Bye():
                peer.close()
                self.lose(peer.identity)
                peer.job.leave(peer.slot, now)

    def _push(self, peer: Peer, push: Push, payload: memoryview, now: float) -> None:
        for frame in push.acknowledge:
            peer.arrived(frame, now)
        if push.pull is not None:
            self._pull(peer, push.pull)
            if not self.links.is_here(peer):
                return
        self._pushes.take(peer, push, payload)

    def _arrived(self, peer: Peer, frames: Sequence[int], now: float) -> None:
        """The client has frames of values."""
        for frame in frames:
            peer.arrived(frame, now)
        self.links.due(peer)

    def _pull(self, peer: Peer, pull: Pull) -> None:
        shard = peer.job.shard
        for wait, units in asked_pulls(shard, peer, pull):
            self.work.ask(wait, units, shard)
            if not self.links.is_here(peer):  # It has asked for too much.
                return
        self.links.due(peer)

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten."""
        self.links.lose(identity)

    def work_once(self) -> bool:
        """The most urgent piece of work. True if there was one. A rule that fails closes the job, not the shard."""
        return self.work.work_once()

    def wants_flush(self) -> bool:
        """Whether `flush` is due: nothing is left to merge, enough was merged, or a link that has values is idle."""
        links = self.links
        for peer in links.arenas.settled():
            links.due(peer)
        if not links.waiting:
            return False
        if not self.work or self.work.batch_is_full:
            return True
        return any(peer.outbox.queued_slices and not peer.outbox.in_flight_bytes for peer in links.waiting.values())

    def flush(self, now: float) -> None:
        """Puts acknowledgements and as many frames as credit allows into `outgoing`."""
        self.work.begin_batch()
        links = self.links
        outgoing = links.outgoing
        waiting, links.waiting = links.waiting, {}
        for identity, peer in waiting.items():
            outgoing += [(identity, parts) for parts in peer.receipts()]
            links.arenas.look(peer)
            for parts in peer.frames(now):
                self.counts.frames_sent += 1
                outgoing.append((identity, parts))
            outgoing += [(identity, parts) for parts in peer.late_receipts()]

    def tick(self, now: float) -> None:
        """Forgets silent connections, and fails what waits for absent slots. To be called every ping or so."""
        silence_s = self.settings.silence_s
        for peer in [one for one in self.peers.values() if now - one.heard > silence_s]:
            self.lose(peer.identity)
        job = self.links.job
        if job is not None:
            self._hyper.doubt(job, now, silence_s)
            give_up(self.links, job, job.absent(now, silence_s))
