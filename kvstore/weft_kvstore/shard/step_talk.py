"""What a shard answers of whole steps: barriers, what they amount to, and commits. Pure."""

from __future__ import annotations

from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.shard.door import Job, Namespace
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import MAX_OPEN_MEASURES, Peer
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import Barrier, Commit, Measure, Measured


class StepTalk:
    """On all connections; what may be merged then is left to `work`."""

    def __init__(self, links: Links, work: Merger[Namespace]) -> None:
        self._links = links
        self._work = work

    def barrier(self, peer: Peer, barrier: Barrier) -> None:
        """The slot has nothing for some keys in a step."""
        job = self._links.jobs[peer.job]
        try:
            taken = job.shard.declare_nothing(peer.slot, barrier.step, barrier.nothing)
        except PushRefusedError as error:
            self._links.refuse_request(peer, barrier.request, error)
            return
        self._work.take(peer.job, taken)
        if not self._links.is_here(peer):
            return
        job.stragglers.came(peer.slot, barrier.step, peer.heard)
        peer.done.append(barrier.request)
        self._links.due(peer)

    def measure(self, peer: Peer, measure: Measure) -> None:
        """The slot's step is whole, and it asks what the step amounts to."""
        if measure.request in peer.measures or len(peer.measures) >= MAX_OPEN_MEASURES:
            raise ProtocolError(f"Measure.request: {measure.request} is open already, or {MAX_OPEN_MEASURES} are")
        job = self._links.jobs[peer.job]
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
                measured = Measured(request, found.squares, int(found.finite), found.loss_scale)
                self._links.say(peer.identity, measured)

    def commit(self, peer: Peer, commit: Commit) -> None:
        """The slot says what all shards measured of a step."""
        shard = self._links.jobs[peer.job].shard
        try:
            goes_on = shard.commit(commit.step, norm=commit.norm, finite=bool(commit.finite))
        except PushRefusedError as error:
            self._links.refuse_request(peer, commit.request, error)
            return
        if goes_on:
            self._work.go_on(peer.job, shard)
        peer.done.append(commit.request)
        self._links.due(peer)
