"""All that a shard decides: messages and time in, messages out. Pure: no sockets, clocks or threads.

A connection is known by the identity that the socket gives it, and means nothing before its Hello. `outgoing` collects
what is to be sent; `flush` adds acknowledgements and frames, as late as possible, so that what is urgent overtakes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from weft_kvstore.arrays import Buffer
from weft_kvstore.errors import StoreError
from weft_kvstore.hyper import ChangeRefusedError, Proposal
from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.same_host.peers import Arenas
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import MAX_OPEN_MEASURES, Admission, Job, Peer, admit
from weft_kvstore.shard.pushes import Answers, Links, Pushes, asked_pulls
from weft_kvstore.wire.codec import ProtocolError, decode_request, encode, number_of
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
    HyperAnswer,
    HyperDecide,
    HyperDecided,
    HyperDoubt,
    HyperSettle,
    Measure,
    Measured,
    Ping,
    Pong,
    Pull,
    Push,
    RefusalCode,
    Refused,
    Request,
    Welcome,
    Why,
)

# --- How a connection begins: a Hello, and what is answered to it -----------------------------------------------------


class Handshake:
    """`boot` is 16 bytes drawn when the process starts."""

    def __init__(self, links: Links, settings: LinkSettings, boot: bytes) -> None:
        self._links = links
        self._settings = settings
        self._boot = boot

    def hello(self, identity: bytes, hello: Hello, number: int, now: float) -> None:
        """Welcomes whoever says this, or refuses; the slot's connection so far, if there is one, is lost. Who says it
        again, as message 1, has not heard the answer perhaps."""
        links = self._links
        known = links.peers.get(identity)
        if number and known is not None:
            if known.received == number and known.welcome is not None:
                links.outgoing.append((identity, encode(known.welcome, None, number)))
            return
        verdict = admit(links.job, links.peers, identity, hello)
        if not isinstance(verdict, Admission):
            links.counts.refused += 1
            links.lose(identity)
            links.say(identity, verdict)
            return
        if verdict.supersedes is not None:
            links.lose(verdict.supersedes)
        _fill(verdict.job, hello)
        peer = Peer(identity, hello, verdict.job, self._settings, now)
        peer.parked = verdict.job.parked_of(hello.slot, hello.process)
        peer.shared = links.counts.shared
        links.peers[identity] = verdict.job.links[hello.slot] = peer
        verdict.job.come(hello.slot, now)
        listener = links.arenas.begin(peer)
        if listener:
            links.due(peer)
        silence_ms = int(self._settings.silence_s * 1000)
        peer.received = number
        peer.welcome = Welcome(hello.session, self._boot, silence_ms, listener, peer.ticket)
        links.counts.welcomed += 1
        links.say(identity, peer.welcome)


def _fill(job: Job, hello: Hello) -> None:
    """The slot is filled by this incarnation, newer or not; what an older one has pushed and is not merged is gone."""
    if hello.incarnation > job.incarnations.get(hello.slot, -1):
        if hello.slot in job.incarnations:
            job.shard.replace(hello.slot)
        job.incarnations[hello.slot] = hello.incarnation


# --- What a shard answers to those who change hyper-parameters --------------------------------------------------------


class HyperHandlers:
    """On all connections; what a proposal has held is left to `work` once it holds it no more."""

    def __init__(self, links: Links, work: Merger) -> None:
        self._links = links
        self._work = work

    def take(self, peer: Peer, message: Hyper | HyperDecide | HyperSettle, now: float) -> None:
        """Takes part in agreeing on a change. Raises ProtocolError for what cannot be meant."""
        shard = peer.job.shard
        agreement = shard.live.agreement
        held = agreement.held
        if isinstance(message, Hyper):
            self._links.say(peer.identity, _proposed(shard, peer, message, now))
        elif isinstance(message, HyperDecide):
            version = agreement.decide(message.proposal, take=bool(message.take))
            self._links.say(peer.identity, HyperDecided(message.request, message.proposal, version))
        else:
            agreement.settle(message.proposal, message.version)
            peer.done.append(message.request)
            self._links.due(peer)
        if held is not None and agreement.held is None:
            self._work.go_on(shard)

    def doubt(self, job: Job, now: float, silence_s: float) -> None:
        """A proposal whose proposer is gone, or takes long, holds its step for no longer than it must."""
        agreement = job.shard.live.agreement
        held = agreement.held
        asked = _in_doubt(job, now, silence_s)
        if asked is not None:
            self._links.say(asked[0].identity, asked[1])
        if held is not None and agreement.held is None:
            self._work.go_on(job.shard)


def _proposed(shard: JobShard, peer: Peer, message: Hyper, now: float) -> HyperAnswer:
    """Holds a proposal, or says why not. Raises ProtocolError for what cannot be meant."""
    if len(message.names) != len(message.numbers) or len(set(message.names)) != len(message.names):
        raise ProtocolError(f"Hyper.names: {len(message.names)} with {len(message.numbers)} numbers, or one twice")
    place, numbers = next(iter(message.key), None), dict(zip(message.names, message.numbers, strict=True))
    shard.live.check(place, numbers)
    try:
        shard.live.agreement.propose(
            Proposal(message.proposal, peer.slot, peer.hello.process, message.step, place, numbers, now)
        )
    except ChangeRefusedError as error:
        return HyperAnswer(message.request, message.proposal, 0, error.step, str(error)[:2048])
    return HyperAnswer(message.request, message.proposal, 1, message.step, "")


def _in_doubt(job: Job, now: float, silence_s: float) -> tuple[Peer, HyperDoubt] | None:
    """Whom to ask what became of a proposal that is held for too long, or whose proposer is gone; another one each
    time. Shard 0 gives it up by itself."""
    agreement = job.shard.live.agreement
    held = agreement.held
    linked = {slot: peer.hello.process for slot, peer in job.links.items()}
    if held is None or not agreement.is_in_doubt(now, silence_s, linked):
        return None
    if agreement.decides:
        agreement.decide(held.id, take=False)
        return None
    if not job.links:
        return None
    slots = sorted(job.links)
    return job.links[slots[agreement.next_doubt() % len(slots)]], HyperDoubt(held.id)


# --- What a shard answers of whole steps: barriers, what they amount to, and commits ----------------------------------


class StepHandlers:
    """On all connections; what may be merged then is left to `work`."""

    def __init__(self, links: Links, work: Merger) -> None:
        self._links = links
        self._work = work

    def barrier(self, peer: Peer, barrier: Barrier) -> None:
        """The slot has nothing for some keys in a step."""
        job = peer.job
        try:
            taken = job.shard.declare_nothing(peer.slot, barrier.step, barrier.nothing)
        except PushRefusedError as error:
            self._links.refuse_request(peer, barrier.request, error)
            return
        self._work.take(taken)
        if peer.is_lost:
            return
        job.stragglers.came(peer.slot, barrier.step, peer.heard)
        peer.done.append(barrier.request)
        self._links.due(peer)

    def measure(self, peer: Peer, measure: Measure) -> None:
        """The slot's step is whole, and it asks what the step amounts to."""
        if measure.request in peer.measures or len(peer.measures) >= MAX_OPEN_MEASURES:
            raise ProtocolError(f"Measure.request: {measure.request} is open already, or {MAX_OPEN_MEASURES} are")
        job = peer.job
        peer.measures[measure.request] = measure.step
        try:
            job.shard.arrive(peer.slot, measure.step)
        except PushRefusedError as error:
            del peer.measures[measure.request]
            self._links.refuse_request(peer, measure.request, error)
            return
        self.tell_measured(job, measure.step)

    def tell_measured(self, job: Job, step: int) -> None:
        """Answers who has asked of a step, if it is measured."""
        gate = job.shard.gate
        found = gate.measurement(step) if gate is not None else None
        if found is None:
            return
        for peer in job.links.values():
            for request in [one for one, of in peer.measures.items() if of == step]:
                del peer.measures[request]
                scale = found.loss_scale
                measured = Measured(request, found.squares, int(found.finite), scale.scale, scale.good)
                self._links.say(peer.identity, measured)

    def commit(self, peer: Peer, commit: Commit) -> None:
        """The slot says what all shards measured of a step."""
        shard = peer.job.shard
        try:
            goes_on = shard.commit(commit.step, norm=commit.norm, finite=bool(commit.finite))
        except PushRefusedError as error:
            self._links.refuse_request(peer, commit.request, error)
            return
        if goes_on:
            self._work.go_on(shard)
        peer.done.append(commit.request)
        self._links.due(peer)


# --- What a connection's open requests wait for, and those that wait for slots that are not there ---------------------


def because(shard: JobShard, peer: Peer, why: Why) -> Iterator[Because]:
    """What those of the requests wait for that are open."""
    for request in why.request:
        wait = peer.pulls.get(request)
        if wait is not None:
            yield Because(request, shard.waits_for(wait)[0][:2048])
        elif request in peer.measures:
            yield Because(request, shard.step_waits_for(peer.measures[request])[0][:2048])


def give_up(links: Links, job: Job, absent: Mapping[int, str]) -> None:
    """Fails the job's requests that wait for slots that are absent, which says in words since when."""
    for peer in job.links.values() if absent else ():
        for failed in _in_vain(job.shard, peer, absent):
            peer.cancel(failed.request)
            links.say(peer.identity, failed)


def _in_vain(shard: JobShard, peer: Peer, absent: Mapping[int, str]) -> list[Failed]:
    waiting = [(request, shard.lacks(wait, absent)) for request, wait in peer.pulls.items()]
    for request, step in peer.measures.items():
        reason, missing = shard.step_waits_for(step)
        waiting.append((request, (reason, [slot for slot in missing if slot in absent])))
    return [
        Failed(request, FailureCode.LOST, f"slot {found[1][0]} {absent[found[1][0]]}: {found[0]}"[:2048])
        for request, found in waiting
        if found is not None and found[1]
    ]


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

    def receive(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message. What is no message, or not from a client of a job here, is counted and answered with Refused."""
        self.counts.bytes_received += sum(map(len, parts))
        try:
            message, payload = decode_request(parts)
            number, peer = number_of(parts), self.peers.get(identity)
            if isinstance(message, Hello):
                self._handshake.hello(identity, message, number, now)
                return
            if peer is None:
                self.counts.unknown_links += 1
                self.links.say(identity, Refused(RefusalCode.UNKNOWN_LINK, "no Hello came on this connection"))
                return
            peer.heard = peer.job.heard[peer.slot] = now
            if number == peer.received + 1:
                peer.received = number
            elif number:  # 0 is not counted.
                if number > peer.received:
                    self._miss(peer, number)
                return
            if type(message) is Push:
                self._push(peer, message, payload, now)
            else:
                self._handle(peer, message, now)
        except ProtocolError as error:
            self.links.refuse(identity, error)

    def _miss(self, peer: Peer, number: int) -> None:
        """A message that was sent before this one has not come: what a connection brings would not be in order any
        more, so the client is to begin a new one."""
        reason = f"message {peer.received + 1} of this connection did not come before message {number}"
        _log.info("slot %d: %s; it has to begin a new one", peer.slot, reason)
        self.links.lose(peer.identity)
        self.links.say(peer.identity, Refused(RefusalCode.UNKNOWN_LINK, reason))

    def _handle(self, peer: Peer, message: Request, now: float) -> None:
        match message:
            case Pull():
                self._pull(peer, message)
                self.links.due(peer)
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
        pull = push.pull
        if pull is not None and any(push.chunks):  # Its ids may be in this frame.
            self._pull(peer, pull)
            pull = None
        if not peer.is_lost:
            self._pushes.take(peer, push, payload)
        if pull is not None and not peer.is_lost:  # Last: what has been merged by now is answered at once.
            self._pull(peer, pull)

    def _arrived(self, peer: Peer, frames: Sequence[int], now: float) -> None:
        """The client has frames of values."""
        for frame in frames:
            peer.arrived(frame, now)
        self.links.due(peer)

    def _pull(self, peer: Peer, pull: Pull) -> None:
        shard = peer.job.shard
        for wait, units in asked_pulls(shard, peer, pull):
            self.work.ask(wait, units, shard)
            if peer.is_lost:  # It has asked for too much.
                return

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten."""
        self.links.lose(identity)

    def wants_flush(self) -> bool:
        """Whether `flush` is due: nothing is left to merge, enough was merged, or a link that has values is idle."""
        links = self.links
        if links.arenas.gone:
            links.arenas.settle(links.due)
        if not links.waiting:
            return False
        if not self.work.queue or self.work.batch_is_full:
            return True
        return any(peer.outbox.queued_slices and not peer.outbox.in_flight_bytes for peer in links.waiting.values())

    def flush(self, now: float) -> None:
        """Puts acknowledgements and as many frames as credit allows into `outgoing`."""
        self.work.begin_batch()
        links = self.links
        outgoing = links.outgoing
        waiting, links.waiting = links.waiting, {}
        for identity, peer in waiting.items():
            if peer.done or peer.released:
                outgoing += [(identity, parts) for parts in peer.receipts()]
            if peer.ticket:
                links.arenas.look(peer)
            while peer.outbox.queued_slices and (frame := peer.next_frame(now)) is not None:
                self.counts.frames_sent += 1
                outgoing.append((identity, frame))
            if peer.acknowledge:
                outgoing += [(identity, parts) for parts in peer.late_receipts()]

    def forgive(self, stall_s: float, now: float) -> None:
        """This process stood still for so long: it could not hear anybody."""
        for peer in self.peers.values():
            peer.heard = min(now, peer.heard + stall_s)
        if self.links.job is not None:
            self.links.job.forgive(stall_s, now)

    def tick(self, now: float) -> None:
        """Forgets silent connections, and fails what waits for absent slots. To be called every ping or so."""
        silence_s = self.settings.silence_s
        for peer in [one for one in self.peers.values() if now - one.heard > silence_s]:
            self.lose(peer.identity)
        job = self.links.job
        if job is not None:
            self._hyper.doubt(job, now, silence_s)
            give_up(self.links, job, job.absent(now, silence_s))
