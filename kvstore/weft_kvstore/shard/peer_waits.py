"""What a connection's open requests wait for, and those that wait for slots that cannot be heard. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import Peer
from weft_kvstore.wire.messages import Because, Failed, FailureCode, Why


def because(shard: JobShard, peer: Peer, why: Why) -> Iterator[Because]:
    """What those of the requests wait for that are open."""
    for request in why.request:
        wait = peer.pulls.get(request)
        if wait is not None:
            yield Because(request, shard.waits_for(wait)[0][:2048])
        elif request in peer.measures:
            yield Because(request, shard.step_waits_for(peer.measures[request])[0][:2048])


def in_vain(shard: JobShard, peer: Peer, silent: Mapping[int, float]) -> list[Failed]:
    """The requests that wait for slots that have been `silent` for so many seconds."""
    waiting = [(request, shard.waits_for(wait)) for request, wait in peer.pulls.items()]
    waiting += [(request, shard.step_waits_for(step)) for request, step in peer.measures.items()]
    found = []
    for request, (reason, missing) in waiting:
        lost = [slot for slot in missing if slot in silent]
        if lost:
            told = f"slot {lost[0]} has been silent for {silent[lost[0]]:.1f} s: {reason}"
            found.append(Failed(request, FailureCode.LOST, told))
    return found
