"""All that a shard decides: messages and time in, messages out. Pure: no sockets, clocks or threads.

A connection is known by the identity that the socket gives it, and means nothing before its Hello. `outgoing` collects
what is to be sent; `flush` adds acknowledgements and frames, as late as possible, so that what is urgent overtakes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft_kvstore.arrays import Buffer
from weft_kvstore.errors import StoreError
from weft_kvstore.same_host.peers import Arenas
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.account import Ledger
from weft_kvstore.shard.handlers import Handshake, HyperHandlers, StepHandlers, because, give_up
from weft_kvstore.shard.inbox import Ingress
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links, Outgoing
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import Job, Namespace, Peer
from weft_kvstore.shard.pushes import Answers, Pushes, asked_pulls
from weft_kvstore.statistics import JobStatistics
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


class ShardCore:
    """Every job and every connection of one shard process. `boot` is 16 bytes drawn when the process starts.

    `let_go` is called when bytes of an arena are let go, on whatever thread that happens: `flush` is due then.
    """

    def __init__(
        self,
        boot: bytes,
        settings: LinkSettings,
        ledger: Ledger | None = None,
        *,
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.ledger = Ledger() if ledger is None else ledger
        self.links = Links(let_go)
        self.jobs = self.links.jobs
        self.peers = self.links.peers
        self.counts = self.links.counts
        self.work: Merger[Namespace] = Merger(Answers(self.links, self.fail), priorities=settings.priorities)
        self._ingress = Ingress(self.links, self.work, self.receive)
        self._handshake = Handshake(self.links, settings, boot)
        self._pushes = Pushes(self.links, self.work, self.ledger)
        self._steps = StepHandlers(self.links, self.work)
        self._hyper = HyperHandlers(self.links, self.work)

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
        """Adds a job. Raises StoreError where it is here already."""
        job = Job(shard)
        if job.namespace in self.jobs:
            name, term = job.namespace
            raise StoreError(f"job {name!r}, term {term} is open on this shard already")
        self.jobs[job.namespace] = job
        if shard.gate is not None:
            shard.gate.tell = lambda step: self._steps.tell_measured(job, step)

    def close_job(self, name: str, term: int | None, reason: str) -> None:
        """Drops a job, in one term or in all; its clients are told."""
        for namespace in [one for one in self.jobs if one[0] == name and term in (None, one[1])]:
            self._close(namespace, reason)

    @property
    def is_shared(self) -> bool:
        """Whether more than one job was heard lately."""
        return self.links.active_jobs.is_shared

    def hear(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message: it is received at once, or where jobs share the shard at its job's turn. What fails ends its
        connection, not the others' service."""
        self._ingress.hear(identity, parts, now)

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
            peer.heard = self.jobs[peer.job].heard[peer.slot] = now
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
                for told in because(self.jobs[peer.job].shard, peer, message):
                    self.links.say(peer.identity, told)
            case Ping():
                self.links.say(peer.identity, Pong())
            case Bye():
                peer.close()
                self.lose(peer.identity)
                self.jobs[peer.job].leave(peer.slot, now)

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
        shard = self.jobs[peer.job].shard
        for wait, units in asked_pulls(shard, peer, pull):
            self.work.ask(peer.job, wait, units, shard)
            if not self.links.is_here(peer):  # It has asked for too much.
                return
        self.links.due(peer)

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten."""
        self.links.lose(identity)

    @property
    def waiting_messages(self) -> int:
        """Messages that wait for their job's turn."""
        return self._ingress.waiting

    @property
    def silenced_links(self) -> int:
        """Connections that are not listened to."""
        return self._ingress.silenced

    def job_statistics(self, now: float) -> list[JobStatistics]:
        """Of each job; may be called on any thread."""
        return [job.statistics(self.work.worked(namespace), now) for namespace, job in list(self.jobs.items())]

    def work_once(self) -> bool:
        """The most urgent piece of work. True if there was one. A rule that fails closes its job, not the shard."""
        return self.work.work_once()

    def fail(self, job: Namespace, reason: str) -> None:
        """A job cannot go on: it is closed. What one message brings may fail a job twice."""
        if job in self.jobs:
            self._close(job, reason)

    def wants_flush(self) -> bool:
        """Whether `flush` is due: nothing is left to merge, enough was merged, or a link that has values is idle."""
        egress = self.links.egress
        for peer in self.links.arenas.settled():
            self.links.due(peer)
        if not egress:
            return False
        if not self.work or self.work.batch_is_full:
            return True
        return any(peer.outbox.queued_slices and not peer.outbox.in_flight_bytes for peer in egress.peers())

    def flush(self, now: float) -> None:
        """Puts acknowledgements and as many frames as credit allows into `outgoing`."""
        self.work.begin_batch()
        egress, outgoing = self.links.egress, self.links.outgoing
        peers = list(egress.peers())
        for peer in peers:
            outgoing += [(peer.identity, parts) for parts in peer.receipts()]
            self.links.arenas.look(peer)
        for one in egress.frames(now, self.jobs):
            self.counts.frames_sent += 1
            outgoing.append(one)
        for peer in peers:
            outgoing += [(peer.identity, parts) for parts in peer.late_receipts()]

    def tick(self, now: float) -> None:
        """Forgets silent connections, and fails what waits for absent slots. To be called every ping or so."""
        silence_s = self.settings.silence_s
        self._ingress.tick(now, silence_s)
        for peer in [one for one in self.peers.values() if now - one.heard > silence_s]:
            self.lose(peer.identity)
        for job in self.jobs.values():
            self._hyper.doubt(job, now, silence_s)
            give_up(self.links, job, job.absent(now, silence_s))

    def _close(self, namespace: Namespace, reason: str) -> None:
        self.ledger.release(self.jobs[namespace].shard.account)
        self.work.drop(namespace)
        self._ingress.drop(namespace)
        self.links.drop(namespace, reason).shard.close()
