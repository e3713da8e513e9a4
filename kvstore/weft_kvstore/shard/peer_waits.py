"""What a connection's open requests wait for, and those that wait for slots that are not there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft_kvstore.shard.door import Job
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links
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
