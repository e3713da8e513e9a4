"""All that a shard decides: messages and time in, messages out. Pure: no sockets, clocks or threads.

A connection is known by the identity that the socket gives it, and means nothing before its Hello. `outgoing` collects
what is to be sent; `flush` adds acknowledgements and frames, as late as possible, so that what is urgent overtakes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.errors import StoreError
from weft_kvstore.lot.part import PlainLot
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.same_host.peer_memory import Arenas, PeerMemory, placed
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.account import Ledger
from weft_kvstore.shard.company import Company
from weft_kvstore.shard.departures import Departures, Outgoing, room_of
from weft_kvstore.shard.door import Admission, Job, Namespace, admit
from weft_kvstore.shard.hyper_talk import in_doubt, proposed
from weft_kvstore.shard.inbox import Inbox, Letter, letter_of
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.merger import BATCH_BYTES, Merger
from weft_kvstore.shard.peer import MAX_OPEN_MEASURES, MAX_OPEN_PULLS, Peer
from weft_kvstore.shard.push_runs import take_run
from weft_kvstore.shard.refusals import answer_refusal, push_refusal
from weft_kvstore.shard.releases import Releases
from weft_kvstore.shard.taken import Taken
from weft_kvstore.statistics.job_statistics import JobStatistics
from weft_kvstore.units.unit_state import AnyUnit
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.codec import ProtocolError, decode_request, encode, payload_bytes
from weft_kvstore.wire.messages import (
    Acknowledge,
    Barrier,
    Because,
    Bye,
    Cancel,
    Commit,
    Failed,
    FailureCode,
    Hello,
    Hyper,
    HyperDecide,
    HyperDecided,
    HyperSettle,
    Measure,
    Measured,
    Message,
    Ping,
    Pong,
    Pull,
    Push,
    PushRefused,
    Reading,
    RefusalCode,
    Refused,
    Request,
    Welcome,
    Why,
)
from weft_kvstore.wire.push_run import runs_of

STRANGERS: Final[Namespace] = ("", -1)
"""Among whose messages those are that come from no job's connection."""

LOST_KEPT: Final = 4096
"""Connections that were forgotten of which it is known whose they were: what they still say counts for their job."""

_log = logging.getLogger("weft.shard")


@dataclass(slots=True)
class Counts:
    """What `ShardStatistics` tells."""

    frames_sent: int = 0
    frames_received: int = 0
    malformed: int = 0
    refused: int = 0
    unknown_links: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class ShardMind:
    """Every job and every connection of one shard process. `boot` is 16 bytes drawn when the process starts."""

    boot: bytes
    settings: LinkSettings
    ledger: Ledger = field(default_factory=Ledger)
    jobs: dict[Namespace, Job] = field(default_factory=dict)
    peers: dict[bytes, Peer] = field(default_factory=dict)
    outgoing: list[Outgoing] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    work: Merger[Namespace] = field(init=False)
    arenas: Arenas | None = None
    let_go: Callable[[], None] = lambda: None
    """Called when bytes of an arena are let go, on whatever thread that happens: `flush` is due then."""
    _releases: Releases = field(init=False)
    _to_flush: Departures = field(default_factory=Departures)
    _company: Company[Namespace] = field(default_factory=Company)
    _inbox: Inbox[Namespace] = field(init=False)
    _lost: dict[bytes, Namespace] = field(default_factory=dict)
    _silenced: dict[bytes, float] = field(default_factory=dict)
    """Connections that said more than anybody may, by when they were last heard: they are not listened to."""

    def __post_init__(self) -> None:
        self.work = Merger(self, priorities=self.settings.priorities)
        self._inbox = Inbox(self._deliver)
        self._releases = Releases(self.let_go)

    def open(self, shard: JobShard) -> None:
        """Adds a job. Raises StoreError where it is here already."""
        job = Job(shard)
        if job.namespace in self.jobs:
            name, term = job.namespace
            raise StoreError(f"job {name!r}, term {term} is open on this shard already")
        self.jobs[job.namespace] = job
        if shard.gate is not None:
            shard.gate.tell = lambda step: self._tell_measured(job, step)

    def close_job(self, name: str, term: int | None, reason: str) -> None:
        """Drops a job, in one term or in all; its clients are told."""
        for namespace in [one for one in self.jobs if one[0] == name and term in (None, one[1])]:
            self._close(namespace, reason)

    @property
    def is_shared(self) -> bool:
        """Whether more than one job was heard lately."""
        return self._company.is_shared

    def hear(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message: it is received at once, or where jobs share the shard at its job's turn. What fails ends its
        connection, not the others' service."""
        nbytes, peer = sum(map(len, parts)), self.peers.get(identity)
        self.counts.bytes_received += nbytes
        if peer is not None:
            self.jobs[peer.job].bytes_received += nbytes
        lane = self._inbox.lane_of(identity) or (peer.job if peer is not None else self._lost.get(identity, STRANGERS))
        if self._company.hear(lane):
            self._share()
        if not self._company.is_shared and not self._inbox.has(lane):
            self._read(identity, parts, now)
            return
        if identity in self._silenced:
            self._silenced[identity] = now
            return
        if peer is not None:
            peer.heard = self.jobs[peer.job].heard[peer.slot] = now
        self.work.put(lane, self._inbox.put(lane, letter_of(identity, parts, now)))
        loud = self._inbox.overflows(lane)
        if loud is not None:
            self._inbox.forget(loud)
            self._refuse(loud, ProtocolError("this connection says more than anybody can listen to"))
            self._silenced[loud] = now

    def _deliver(self, letter: Letter) -> None:
        self._read(letter.identity, letter.parts, letter.now)

    def _read(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        try:
            self.receive(identity, parts, now)
        except Exception:  # noqa: BLE001  # a message's outermost frame
            _log.exception("a message of %s failed; its connection is dropped", identity.hex())
            self.lose(identity)

    def _share(self) -> None:
        """Says what each job may have under way, where several are heard."""
        heard = self._company.all()
        self._to_flush.share(room_of(self.jobs[one] for one in heard if one in self.jobs))

    def receive(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message. What is no message, or not from a client of a job here, is counted and answered with Refused."""
        try:
            message, payload = decode_request(parts)
            if isinstance(message, Hello):
                self._hello(identity, message, now)
                return
            peer = self.peers.get(identity)
            if peer is None:
                self.counts.unknown_links += 1
                self._say(identity, Refused(RefusalCode.UNKNOWN_LINK, "no Hello came on this connection"))
                return
            peer.heard = self.jobs[peer.job].heard[peer.slot] = now
            self._handle(peer, message, payload, now)
        except ProtocolError as error:
            self._refuse(identity, error)

    def _refuse(self, identity: bytes, error: ProtocolError) -> None:
        """What a peer said is none of this format, or asks for too much: it is told, and forgotten."""
        self.counts.malformed += 1
        self._say(identity, Refused(RefusalCode.MALFORMED, str(error)[:2048]))
        self.lose(identity)

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten."""
        peer = self.peers.pop(identity, None)
        self._to_flush.pop(identity, peer)
        if peer is None:
            return
        self._lost[identity] = peer.job
        if len(self._lost) > LOST_KEPT:
            del self._lost[next(iter(self._lost))]
        peer.close()
        if self.arenas is not None:
            self.arenas.forget(peer.ticket)
            peer.memory = None
            self._releases.lose(peer)
        job = self.jobs.get(peer.job)
        if job is not None and job.links.get(peer.slot) is peer:
            del job.links[peer.slot]
            self._share()

    @property
    def waiting_messages(self) -> int:
        """Messages that wait for their job's turn."""
        return len(self._inbox)

    @property
    def silenced_links(self) -> int:
        """Connections that are not listened to."""
        return len(self._silenced)

    def job_statistics(self, now: float) -> list[JobStatistics]:
        """Of each job; may be called on any thread."""
        return [
            JobStatistics(
                *namespace,
                links=len(job.links),
                holds=job.shard.account.now,
                waiting=job.shard.account.waiting,
                bytes_received=job.bytes_received,
                bytes_sent=job.bytes_sent,
                worked_bytes=self.work.worked(namespace),
                waited_slot=slot,
                waited_s=seconds,
            )
            for namespace, job in list(self.jobs.items())
            for slot, seconds in [job.stragglers.waits(now) or (None, 0.0)]
        ]

    def work_once(self) -> bool:
        """The most urgent piece of work. True if there was one. A rule that fails closes its job, not the shard."""
        return self.work.work_once()

    def answer(self, wait: PullWait, unit: AnyUnit) -> Iterator[None]:
        """See `Answering`."""
        peer: Peer = wait.link
        if not self._may_queue(peer):
            return
        for _ in peer.answer(wait, unit):
            self._due(peer)
            yield
        if not wait.dropped:
            self._due(peer)

    def answer_range(self, wait: PullWait, lot: PlainLot, first: int, stop: int) -> None:
        """See `Answering`."""
        peer: Peer = wait.link
        if self._may_queue(peer):
            peer.answer_range(wait, lot, first, stop)
            self._due(peer)

    def refuse(self, wait: PullWait, reason: str) -> None:
        """See `Answering`."""
        peer: Peer = wait.link
        peer.cancel(wait.request)
        self._say(peer.identity, Failed(wait.request, FailureCode.PASSED, reason[:2048]))

    def fail(self, job: Namespace, reason: str) -> None:
        """See `Answering`. What one message brings may fail a job twice."""
        if job in self.jobs:
            self._close(job, reason)

    def _due(self, peer: Peer) -> None:
        """It may have something to be sent, if it is a peer still: its own message may have lost it, or its job."""
        if self._is_here(peer):
            self._to_flush[peer.identity] = peer

    def _is_here(self, peer: Peer) -> bool:
        return self.peers.get(peer.identity) is peer

    def _may_queue(self, peer: Peer) -> bool:
        """Whether the peer may have more values wait for it; one that may not is no peer any more."""
        if peer.outbox.queued_bytes <= self.jobs[peer.job].most_queued + BATCH_BYTES:
            return True
        told = f"Pull.request: {peer.outbox.queued_bytes} bytes of values wait to be fetched already"
        self._refuse(peer.identity, ProtocolError(told))
        return False

    def wants_flush(self) -> bool:
        """Whether `flush` is due: nothing is left to merge, enough was merged, or a link that has values is idle."""
        for job, slot in self._releases.settled():
            peer = self.jobs[job].links.get(slot) if job in self.jobs else None
            if peer is not None:
                self._due(peer)
        if not self._to_flush:
            return False
        if not self.work or self.work.batch_is_full:
            return True
        return any(peer.outbox.queued_slices and not peer.outbox.in_flight_bytes for peer in self._to_flush.peers())

    def flush(self, now: float) -> None:
        """Puts acknowledgements and as many frames as credit allows into `outgoing`."""
        self.work.begin_batch()
        peers = list(self._to_flush.peers())
        for peer in peers:
            self.outgoing += [(peer.identity, parts) for parts in peer.receipts()]
            self._memory(peer)
        for one in self._to_flush.frames(now, self.jobs):
            self.counts.frames_sent += 1
            self.outgoing.append(one)
        for peer in peers:
            self.outgoing += [(peer.identity, parts) for parts in peer.late_receipts()]

    def tick(self, now: float) -> None:
        """Forgets silent connections, and fails pulls that wait for silent slots. To be called every ping or so."""
        self._company.tick()
        self._share()
        for peer in [one for one in self.peers.values() if now - one.heard > self.settings.silence_s]:
            self.lose(peer.identity)
        for identity in [one for one, heard in self._silenced.items() if now - heard > self.settings.silence_s]:
            del self._silenced[identity]
        for job in self.jobs.values():
            self._doubt_hyper(job, now)
            silent = {slot: now - at for slot, at in job.heard.items() if now - at > self.settings.silence_s}
            if silent:
                for peer in job.links.values():
                    self._fail_waiting_on(job, peer, silent)

    def _fail_waiting_on(self, job: Job, peer: Peer, silent: dict[int, float]) -> None:
        shard = job.shard
        waiting = [(request, shard.waits_for(wait)) for request, wait in peer.pulls.items()]
        waiting += [(request, shard.step_waits_for(step)) for request, step in peer.measures.items()]
        for request, (reason, missing) in waiting:
            lost = [slot for slot in missing if slot in silent]
            if lost:
                peer.cancel(request)
                told = f"slot {lost[0]} has been silent for {silent[lost[0]]:.1f} s: {reason}"
                self._say(peer.identity, Failed(request, FailureCode.LOST, told))

    def _hello(self, identity: bytes, hello: Hello, now: float) -> None:
        verdict = admit(self.jobs, self.peers, identity, hello)
        if not isinstance(verdict, Admission):
            self.counts.refused += 1
            self.lose(identity)
            self._say(identity, verdict)
            return
        if verdict.supersedes is not None:
            self.lose(verdict.supersedes)
        job = verdict.job
        if hello.incarnation > job.incarnations.get(hello.slot, -1):
            if hello.slot in job.incarnations:
                job.shard.replace(hello.slot)
            job.incarnations[hello.slot] = hello.incarnation
        peer = Peer(identity, hello, self.settings, now)
        peer.account = job.shard.account
        self._company.forget(STRANGERS)
        self._company.hear(peer.job)
        self.peers[identity] = job.links[hello.slot] = peer
        self._share()
        job.heard[hello.slot] = now
        door = b""
        if self.arenas is not None:
            door, peer.ticket = self.arenas.name, self.arenas.expect(job.shard.places.nbytes)
            self._releases.begin(peer)
            self._due(peer)
        self._say(identity, Welcome(hello.session, self.boot, int(self.settings.silence_s * 1000), door, peer.ticket))

    def _handle(self, peer: Peer, message: Request, payload: memoryview, now: float) -> None:
        match message:
            case Push():
                self._arrived(peer, message.acknowledge, now)
                self._push(peer, message, payload)
            case Pull():
                self._pull(peer, message)
            case Acknowledge():
                self._arrived(peer, message.frame, now)
            case Barrier():
                self._barrier(peer, message)
            case Measure():
                self._measure(peer, message)
            case Commit():
                self._commit(peer, message)
            case Hyper() | HyperDecide() | HyperSettle():
                self._hyper(peer, message, now)
            case Cancel():
                peer.cancel_all(message.request)
            case Why():
                self._why(peer, message)
            case Ping():
                self._say(peer.identity, Pong())
            case Bye():
                self.lose(peer.identity)

    def _arrived(self, peer: Peer, frames: Sequence[int], now: float) -> None:
        """The client has frames of values."""
        for frame in frames:
            peer.arrived(frame, now)
        self._due(peer)

    def _push(self, peer: Peer, push: Push, payload: memoryview) -> None:
        self.counts.frames_received += 1
        shard = self.jobs[peer.job].shard
        arena = None
        if push.at is not None or push.place:
            arena = self._arena(peer, push)
            if arena is None:
                return
        if push.at is not None and arena is not None:
            payload = memoryview(placed(arena, (push.at, push.at + payload_bytes(push))))  # type: ignore[arg-type]
        refused = None
        if not self.ledger.is_open:
            refused = push_refusal(self.ledger, shard, list(runs_of(push, payload)), payload.nbytes)
        if refused is None and push.at is None:
            payload = shard.account.taken_over(payload)
        for number, run in enumerate(runs_of(push, payload, arena)):
            if not self._is_here(peer):  # An answer has lost it.
                return
            try:
                if refused is not None:
                    raise PushRefusedError(f"{shard.parts.named(peer.slot, run)}: {refused}")
                self._take(peer, shard, take_run(shard, peer, run))
            except PushRefusedError as error:
                self.counts.refused += 1
                self._say(peer.identity, PushRefused(push.frame, number, str(error)[:2048]))
        if not self._is_here(peer):
            return
        peer.acknowledge.append(push.frame)
        self._due(peer)
        if refused is None and push.cargo[-1] == Cargo.GRADIENT:
            self.jobs[peer.job].stragglers.came(peer.slot, push.step[-1], peer.heard)

    def _take(self, peer: Peer, shard: JobShard, taken: Taken) -> None:
        wait = taken.pull
        refused = None if wait is None or not taken.units else answer_refusal(self.ledger, shard, wait)
        if wait is None or refused is None:
            self.work.take(peer.job, taken)
            return
        peer.cancel(wait.request)
        reason = f"slot {peer.slot}, key {taken.units[0].spec.key!r}, version {wait.version}: {refused}"
        self._refuse_request(peer, wait.request, PushRefusedError(reason))

    def _arena(self, peer: Peer, push: Push) -> Array | None:
        """The client's arena, held for a frame. Where it has brought none, nothing of the frame is taken in."""
        memory = self._memory(peer)
        if memory is not None:
            return self._releases.hold(peer, memory, push.frame)
        for run in range(len(push.nbytes)):
            self.counts.refused += 1
            self._say(peer.identity, PushRefused(push.frame, run, "its bytes are in an arena that was not brought"))
        peer.acknowledge.append(push.frame)
        peer.released.append(push.frame)
        self._due(peer)
        return None

    def _memory(self, peer: Peer) -> PeerMemory | None:
        """The arena that a client has brought, if it has."""
        found = self.arenas.arena(peer.ticket) if self.arenas is not None and peer.ticket else None
        peer.outbox.shared = found is not None
        if found is None:
            peer.memory = None
        elif peer.memory is None or peer.memory.memory is not found:
            peer.memory = PeerMemory(found, self.jobs[peer.job].shard.places)
        return peer.memory

    def _pull(self, peer: Peer, pull: Pull) -> None:
        shard = self.jobs[peer.job].shard
        alike = zip(pull.version, pull.state, pull.reading, pull.compressed, strict=True)
        columns = (pull.request, alike, pull.lot, pull.first, pull.count, pull.chunks)
        in_place = {request for request, place in zip(pull.request, pull.place, strict=False) if place}
        asked: dict[int, tuple[PullWait, list[AnyUnit]]] = {}
        for request, (version, state, reading, compressed), lot, first, count, chunks in zip(*columns, strict=True):
            if request not in asked:
                if request in peer.pulls or len(peer.pulls) >= MAX_OPEN_PULLS:
                    raise ProtocolError(f"Pull.request: {request} is open already, or {MAX_OPEN_PULLS} are")
                wait = PullWait(
                    peer,
                    request,
                    version,
                    slot=peer.slot,
                    state=bool(state),
                    reading=_reading(reading),
                    compressed=bool(compressed),
                )
                wait.place = request in in_place
                asked[request] = wait, []
                peer.asks(wait)
            wait, units = asked[request]
            same = wait.version == version and wait.state == bool(state) and wait.compressed == bool(compressed)
            if not same or wait.reading != reading:
                raise ProtocolError(f"Pull.request: {request} asks in two ways")
            units += shard.pulls.ask(wait, lot, first, count, chunks)
        for wait, units in asked.values():
            self.work.ask(peer.job, wait, units, shard)
            if not self._is_here(peer):  # It has asked for too much.
                return
        self._due(peer)

    def _barrier(self, peer: Peer, barrier: Barrier) -> None:
        try:
            taken = self.jobs[peer.job].shard.declare_nothing(peer.slot, barrier.step, barrier.nothing)
        except PushRefusedError as error:
            self._refuse_request(peer, barrier.request, error)
            return
        self.work.take(peer.job, taken)
        if not self._is_here(peer):
            return
        self.jobs[peer.job].stragglers.came(peer.slot, barrier.step, peer.heard)
        peer.done.append(barrier.request)
        self._due(peer)

    def _measure(self, peer: Peer, measure: Measure) -> None:
        if measure.request in peer.measures or len(peer.measures) >= MAX_OPEN_MEASURES:
            raise ProtocolError(f"Measure.request: {measure.request} is open already, or {MAX_OPEN_MEASURES} are")
        job = self.jobs[peer.job]
        peer.measures[measure.request] = measure.step
        try:
            job.shard.arrive(peer.slot, measure.step)
        except PushRefusedError as error:
            del peer.measures[measure.request]
            self._refuse_request(peer, measure.request, error)
            return
        self._tell_measured(job, measure.step)

    def _tell_measured(self, job: Job, step: int) -> None:
        """Answers who has asked of a step, if it is measured."""
        gate = job.shard.gate
        found = gate.measurement(step) if gate is not None else None
        if found is None:
            return
        for peer in job.links.values():
            for request in [one for one, of in peer.measures.items() if of == step]:
                del peer.measures[request]
                self._say(peer.identity, Measured(request, found.squares, int(found.finite), found.loss_scale))

    def _commit(self, peer: Peer, commit: Commit) -> None:
        try:
            goes_on = self.jobs[peer.job].shard.commit(commit.step, norm=commit.norm, finite=bool(commit.finite))
        except PushRefusedError as error:
            self._refuse_request(peer, commit.request, error)
            return
        if goes_on:
            self.work.go_on(peer.job, self.jobs[peer.job].shard)
        peer.done.append(commit.request)
        self._due(peer)

    def _hyper(self, peer: Peer, message: Hyper | HyperDecide | HyperSettle, now: float) -> None:
        shard = self.jobs[peer.job].shard
        agreement = shard.live.agreement
        held = agreement.held
        if isinstance(message, Hyper):
            self._say(peer.identity, proposed(shard, peer, message, now))
        elif isinstance(message, HyperDecide):
            version = agreement.decide(message.proposal, take=bool(message.take))
            self._say(peer.identity, HyperDecided(message.request, message.proposal, version))
        else:
            agreement.settle(message.proposal, message.version)
            peer.done.append(message.request)
            self._due(peer)
        if held is not None and agreement.held is None:
            self.work.go_on(peer.job, shard)

    def _doubt_hyper(self, job: Job, now: float) -> None:
        """A proposal whose proposer is gone, or takes long, holds its step for no longer than it must."""
        agreement = job.shard.live.agreement
        held = agreement.held
        asked = in_doubt(job, now, self.settings.silence_s)
        if asked is not None:
            self._say(asked[0].identity, asked[1])
        if held is not None and agreement.held is None:
            self.work.go_on(job.namespace, job.shard)

    def _refuse_request(self, peer: Peer, request: int, error: PushRefusedError) -> None:
        self.counts.refused += 1
        self._say(peer.identity, Failed(request, FailureCode.REFUSED, str(error)[:2048]))

    def _why(self, peer: Peer, why: Why) -> None:
        shard = self.jobs[peer.job].shard
        for request in why.request:
            wait = peer.pulls.get(request)
            if wait is not None:
                self._say(peer.identity, Because(request, shard.waits_for(wait)[0][:2048]))
            elif request in peer.measures:
                self._say(peer.identity, Because(request, shard.step_waits_for(peer.measures[request])[0][:2048]))

    def _close(self, namespace: Namespace, reason: str) -> None:
        job = self.jobs.pop(namespace)
        self.ledger.release(job.shard.account)
        self.work.drop(namespace)
        self._inbox.drop(namespace)
        for peer in list(job.links.values()):
            self._say(peer.identity, Refused(RefusalCode.CLOSED, reason[:2048]))
            self.lose(peer.identity)
        self._lost = {identity: whose for identity, whose in self._lost.items() if whose != namespace}
        self._to_flush.drop(namespace)
        job.shard.close()

    def _say(self, identity: bytes, message: Message) -> None:
        self.outgoing.append((identity, encode(message)))


def _reading(number: int) -> Reading:
    try:
        return Reading(number)
    except ValueError:
        raise ProtocolError(f"Pull.reading: {number} is none that there is") from None
