"""Connections that have something to be sent, and in which order it goes where several jobs share a shard. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.shard.door import Job, Namespace
from weft_kvstore.shard.peer import Peer
from weft_kvstore.shard.turns import Turns

SHARED_BYTES: Final = 1 << 21
"""What leaves in one round where jobs share the shard: then it looks at what came."""

Outgoing: TypeAlias = tuple[bytes, list[Buffer]]


class Departures:
    """`room` is how many bytes each job may have under way, where several share the shard: as many as that one whose
    links have the least credit together, for on a line that they share they get parts in proportion.

    Of a job that has as many under way, connections wait here until something of it has arrived: it is in `_held`.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self._waiting: dict[Namespace, dict[bytes, Peer]] = {}
        self._held: set[Namespace] = set()
        self._turns: Turns[Namespace] = Turns()

    def __bool__(self) -> bool:
        """Whether any may send."""
        return len(self._waiting) > len(self._held)

    def __setitem__(self, identity: bytes, peer: Peer) -> None:
        """A connection that may have something to be sent, or of whose frames one has arrived."""
        peers = self._waiting.get(peer.job)
        if peers is None:
            peers = self._waiting[peer.job] = {}
            self._turns.come(peer.job)
        peers[identity] = peer
        self._held.discard(peer.job)

    def pop(self, identity: bytes, peer: Peer | None) -> None:
        """The connection is gone, if it was one."""
        if peer is None:
            return
        self._held.discard(peer.job)
        if self._waiting.get(peer.job, {}).pop(identity, None) is not None:
            self._tidy(peer.job)

    def share(self, room: int | None) -> None:
        """Says how many bytes each job may have under way."""
        if room != self.room:
            self.room = room
            self._held.clear()

    def drop(self, job: Namespace) -> None:
        """The job is gone, and so are its connections."""
        self._waiting.pop(job, None)
        self._held.discard(job)
        self._turns.drop(job)

    def peers(self) -> Iterator[Peer]:
        """All of them that may send."""
        return (peer for job, peers in self._waiting.items() if job not in self._held for peer in peers.values())

    def frames(self, now: float, jobs: Mapping[Namespace, Job]) -> Iterator[Outgoing]:
        """Frames of values as far as credit allows; where jobs share the shard some of each, in turn by bytes."""
        if self.room is not None:
            yield from self._in_turn(now, self.room, jobs)
            return
        waiting, self._waiting = self._waiting, {}
        self._held.clear()
        for peers in waiting.values():
            for peer in peers.values():
                for parts in peer.frames(now):
                    self._sent(jobs, peer.job, parts)
                    yield peer.identity, parts

    def _in_turn(self, now: float, room: int, jobs: Mapping[Namespace, Job]) -> Iterator[Outgoing]:
        left = SHARED_BYTES
        for gone in [job for job in self._waiting if job not in jobs]:
            self.drop(gone)
        under_way = {job: in_flight(jobs[job]) for job in self._waiting}
        self._held.clear()
        while left > 0 and len(self._held) < len(self._waiting):
            job = self._turns.first(one for one in self._waiting if one not in self._held)
            if under_way[job] >= room:
                self._held.add(job)
                continue
            peers = self._waiting[job]
            identity = next(iter(peers))
            peer = peers.pop(identity)
            before = peer.outbox.in_flight_bytes
            parts = peer.next_frame(now)
            if parts is None:
                self._tidy(job)
                continue
            peers[identity] = peer  # behind the job's others
            nbytes = peer.outbox.in_flight_bytes - before
            under_way[job] += nbytes
            left -= nbytes
            self._turns.use(job, nbytes)
            self._sent(jobs, job, parts)
            yield identity, parts

    @staticmethod
    def _sent(jobs: Mapping[Namespace, Job], job: Namespace, parts: list[Buffer]) -> None:
        if job in jobs:
            jobs[job].bytes_sent += sum(len(part) for part in parts)

    def _tidy(self, job: Namespace) -> None:
        if not self._waiting[job]:
            del self._waiting[job]
            self._held.discard(job)


def in_flight(job: Job) -> int:
    """Bytes of values under way to a job's connections."""
    return sum(peer.outbox.in_flight_bytes for peer in job.links.values())


def room_of(jobs: Iterable[Job]) -> int | None:
    """What each of these jobs may have under way; None where there is only one."""
    found = [sum(peer.outbox.credit_bytes for peer in job.links.values()) for job in jobs if job.links]
    return min(found) if len(found) > 1 else None
