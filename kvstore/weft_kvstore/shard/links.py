"""The connections of a shard by job: what leaves on them, in which order, and frames in clients' arenas. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.same_host.peers import Arenas, PeerMemory
from weft_kvstore.shard.account import ActiveJobs, FairQueue
from weft_kvstore.shard.peer import Job, Namespace, Peer
from weft_kvstore.statistics import SharedBytes
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import Failed, FailureCode, Message, RefusalCode, Refused

# --- Connections that have something to be sent, and in which order it goes where several jobs share a shard ----------


SHARED_BYTES: Final = 1 << 21
"""What leaves in one round where jobs share the shard: then it looks at what came."""

Outgoing: TypeAlias = tuple[bytes, list[Buffer]]


class Egress:
    """`room` is how many bytes each job may have under way, where several share the shard: as many as that one whose
    links have the least credit together, for on a line that they share they get parts in proportion.

    Of a job that has as many under way, connections wait here until something of it has arrived: it is in `_held`.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self._waiting: dict[Namespace, dict[bytes, Peer]] = {}
        self._held: set[Namespace] = set()
        self._turns: FairQueue[Namespace] = FairQueue()

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


# --- Frames whose bytes lie in clients' arenas: who still reads them, and whom to tell that nobody does ---------------


class Releases:
    """`wake` is called when bytes are let go, on whatever thread that happens; `settled` is for the shard's own thread.

    What a slot's lost connection has brought may be read for as long as before. Until it is not, the next connection is
    told nothing: what it sends again may be in the same bytes. Invariant: `_lost` has no slot without a connection of
    which something is read; a connection's `Peer.earlier` is its slot's list, if there was one when it began.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._gone: deque[tuple[Peer, int]] = deque()
        self._lost: dict[tuple[tuple[str, int], int], list[Peer]] = {}

    def __bool__(self) -> bool:
        return bool(self._gone)

    def hold(self, peer: Peer, memory: PeerMemory, frame: int) -> Array:
        """All of a client's arena, to be read for a frame."""
        found = memory.hold(partial(self._let_go, peer, frame))
        peer.holds += 1
        return found

    def begin(self, peer: Peer) -> None:
        """A new connection: it is told first that nothing of earlier ones is read."""
        peer.earlier = self._lost.get((peer.job, peer.slot), [])
        peer.released.append(0)

    def lose(self, peer: Peer) -> None:
        """A connection is gone."""
        if peer.holds:
            self._lost.setdefault((peer.job, peer.slot), []).append(peer)

    def settled(self) -> Iterator[tuple[tuple[str, int], int]]:
        """The jobs and slots of which bytes were let go."""
        while self._gone:
            peer, frame = self._gone.popleft()
            peer.holds -= 1
            peer.released.append(frame)
            if not peer.holds:
                self._forget(peer)
            yield peer.job, peer.slot

    def _forget(self, peer: Peer) -> None:
        """Nothing of a connection is read any more. That of a slot of which nothing is left has no entry."""
        of_slot = self._lost.get((peer.job, peer.slot), [])
        if peer in of_slot:
            of_slot.remove(peer)
            if not of_slot:
                del self._lost[peer.job, peer.slot]

    def _let_go(self, peer: Peer, frame: int) -> None:
        self._gone.append((peer, frame))
        self._wake()


# --- The arenas that clients of a shard's host have brought, by connection --------------------------------------------


class PeerArenas:
    """`listener` is where they are brought; None where the shard shares no memory. `let_go` is called when bytes of one
    are let go, on whatever thread that happens."""

    def __init__(self, jobs: Mapping[Namespace, Job], let_go: Callable[[], None]) -> None:
        self.listener: Arenas | None = None
        self._jobs = jobs
        self._releases = Releases(let_go)

    def begin(self, peer: Peer) -> bytes:
        """A new connection gets a ticket; the listener's name, which is empty where there is none."""
        if self.listener is None:
            return b""
        peer.ticket = self.listener.expect(self._jobs[peer.job].shard.places.nbytes)
        self._releases.begin(peer)
        return self.listener.name

    def lose(self, peer: Peer) -> None:
        """A connection is gone."""
        if self.listener is not None:
            self.listener.forget(peer.ticket)
            peer.memory = None
            self._releases.lose(peer)

    def look(self, peer: Peer) -> PeerMemory | None:
        """The arena that a client has brought, if it has."""
        found = self.listener.arena(peer.ticket) if self.listener is not None and peer.ticket else None
        peer.outbox.shared = found is not None
        if found is None:
            peer.memory = None
        elif peer.memory is None or peer.memory.memory is not found:
            peer.memory = PeerMemory(found, self._jobs[peer.job].shard.places)
        return peer.memory

    def hold(self, peer: Peer, frame: int) -> Array | None:
        """All of a client's arena, to be read for a frame; None where it has brought none."""
        memory = self.look(peer)
        return None if memory is None else self._releases.hold(peer, memory, frame)

    def settled(self) -> Iterator[Peer]:
        """The connections that can be told that bytes were let go."""
        for job, slot in self._releases.settled():
            peer = self._jobs[job].links.get(slot) if job in self._jobs else None
            if peer is not None:
                yield peer


# --- The connections of a shard's jobs, and what is to leave on them --------------------------------------------------


LOST_KEPT: Final = 4096
"""Connections that were forgotten of which it is known whose they were: what they still say counts for their job."""


@dataclass(slots=True)
class Counts:
    """What `ShardStatistics` tells."""

    frames_sent: int = 0
    frames_received: int = 0
    malformed: int = 0
    refused: int = 0
    unknown_links: int = 0
    bytes_received: int = 0
    shared: SharedBytes = field(default_factory=SharedBytes)


class Links:
    """`peers`, by the identity that the socket gives them, have said Hello to one of the `jobs`. `outgoing` collects
    what is to be sent at once; `egress` are the connections that may have values or receipts besides. `active_jobs`
    knows which jobs were heard lately."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.jobs: dict[Namespace, Job] = {}
        self.peers: dict[bytes, Peer] = {}
        self.outgoing: list[Outgoing] = []
        self.counts = Counts()
        self.egress = Egress()
        self.active_jobs: ActiveJobs[Namespace] = ActiveJobs()
        self.arenas = PeerArenas(self.jobs, let_go)
        self._lost: dict[bytes, Namespace] = {}

    def say(self, identity: bytes, message: Message) -> None:
        """Sends a message before all values that have not left."""
        self.outgoing.append((identity, encode(message)))

    def due(self, peer: Peer) -> None:
        """It may have something to be sent, if it is a peer still: its own message may have lost it, or its job."""
        if self.is_here(peer):
            self.egress[peer.identity] = peer

    def is_here(self, peer: Peer) -> bool:
        """Whether it was not lost."""
        return self.peers.get(peer.identity) is peer

    def lost_job(self, identity: bytes) -> Namespace | None:
        """Whose a connection was that is none any more, as far as that is known."""
        return self._lost.get(identity)

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten. No harm if it is none."""
        peer = self.peers.pop(identity, None)
        self.egress.pop(identity, peer)
        if peer is None:
            return
        self._lost[identity] = peer.job
        if len(self._lost) > LOST_KEPT:
            del self._lost[next(iter(self._lost))]
        job = self.jobs.get(peer.job)
        is_slots = job is not None and job.links.get(peer.slot) is peer
        if is_slots:
            peer.park()
        else:
            peer.close()
        self.arenas.lose(peer)
        if job is not None and is_slots:
            job.parked[peer.slot] = peer
            del job.links[peer.slot]
            self.share()

    def drop(self, job: Namespace, reason: str) -> Job:
        """The job is gone, and its connections are told and lost."""
        found = self.jobs.pop(job)
        for peer in list(found.links.values()):
            self.say(peer.identity, Refused(RefusalCode.CLOSED, reason[:2048]))
            self.lose(peer.identity)
        self._lost = {identity: whose for identity, whose in self._lost.items() if whose != job}
        self.egress.drop(job)
        return found

    def refuse(self, identity: bytes, error: ProtocolError) -> None:
        """What a peer said is none of this format, or asks for too much: it is told, and forgotten."""
        self.counts.malformed += 1
        self.say(identity, Refused(RefusalCode.MALFORMED, str(error)[:2048]))
        self.lose(identity)

    def refuse_request(self, peer: Peer, request: int, error: PushRefusedError) -> None:
        """What a request asks for contradicts what is there."""
        self.counts.refused += 1
        self.say(peer.identity, Failed(request, FailureCode.REFUSED, str(error)[:2048]))

    def share(self) -> None:
        """Says what each job may have under way, where several are heard."""
        heard = self.active_jobs.all()
        self.egress.share(room_of(self.jobs[one] for one in heard if one in self.jobs))
