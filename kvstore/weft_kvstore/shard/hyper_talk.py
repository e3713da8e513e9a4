"""What a shard answers to those who change hyper-parameters. Pure."""

from __future__ import annotations

from weft_kvstore.hyper.agreement import ChangeRefusedError, Proposal
from weft_kvstore.shard.door import Job, Namespace
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import Peer
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import Hyper, HyperAnswer, HyperDecide, HyperDecided, HyperDoubt, HyperSettle


class HyperTalk:
    """On all connections; what a proposal has held is left to `work` once it holds it no more."""

    def __init__(self, links: Links, work: Merger[Namespace]) -> None:
        self._links = links
        self._work = work

    def take(self, peer: Peer, message: Hyper | HyperDecide | HyperSettle, now: float) -> None:
        """Takes part in agreeing on a change. Raises ProtocolError for what cannot be meant."""
        shard = self._links.jobs[peer.job].shard
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
            self._work.go_on(peer.job, shard)

    def doubt(self, job: Job, now: float, silence_s: float) -> None:
        """A proposal whose proposer is gone, or takes long, holds its step for no longer than it must."""
        agreement = job.shard.live.agreement
        held = agreement.held
        asked = _in_doubt(job, now, silence_s)
        if asked is not None:
            self._links.say(asked[0].identity, asked[1])
        if held is not None and agreement.held is None:
            self._work.go_on(job.namespace, job.shard)


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
