"""What a shard answers of what slots agree on: hyper-parameters, whole steps, and what a request waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft_kvstore.bucket.gate import PushRefusedError
from weft_kvstore.hyper import ChangeRefusedError, Proposal
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import MAX_OPEN_MEASURES, Job, Peer
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import (
    Barrier,
    Because,
    Commit,
    Failed,
    FailureCode,
    Hyper,
    HyperAnswer,
    HyperDecide,
    HyperDecided,
    HyperDoubt,
    HyperSettle,
    Measure,
    Measured,
    Why,
)

# --- Hyper-parameters that change, and whole steps: barriers, what they amount to, and commits ------------------------


class Agreements:
    """On all connections; what may be merged then, or is held no more, is left to `work`."""

    def __init__(self, links: Links, work: Merger) -> None:
        self._links = links
        self._work = work

    def change(self, peer: Peer, message: Hyper | HyperDecide | HyperSettle, now: float) -> None:
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
