"""The connections of a shard: what leaves on them, and frames in clients' arenas. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.same_host.peers import Arenas, PeerMemory
from weft_kvstore.shard.peer import Job, Peer
from weft_kvstore.statistics import SharedBytes
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import Failed, FailureCode, Message, RefusalCode, Refused

Outgoing: TypeAlias = tuple[bytes, list[Buffer]]


# --- The arenas that clients of a shard's host have brought, by connection --------------------------------------------


class PeerArenas:
    """`listener` is where they are brought; None where the shard shares no memory. `wake` is called when bytes of one
    are let go, on whatever thread that happens; `settled` is for the shard's own thread.

    What a slot's lost connection has brought may be read for as long as before. Until it is not, the next connection is
    told nothing: what it sends again may be in the same bytes. Invariant: `_lost` has no slot without a connection of
    which something is read; a connection's `Peer.earlier` is its slot's list, if there was one when it began.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.listener: Arenas | None = None
        self._wake = wake
        self._gone: deque[tuple[Peer, int]] = deque()
        self._lost: dict[int, list[Peer]] = {}

    def begin(self, peer: Peer) -> bytes:
        """A new connection gets a ticket, and is told first that nothing of earlier ones is read; the listener's name,
        which is empty where there is none."""
        if self.listener is None:
            return b""
        peer.ticket = self.listener.expect(peer.job.shard.places.nbytes)
        peer.earlier = self._lost.get(peer.slot, [])
        peer.released.append(0)
        return self.listener.name

    def lose(self, peer: Peer) -> None:
        """A connection is gone."""
        if self.listener is not None:
            self.listener.forget(peer.ticket)
            peer.memory = None
            if peer.holds:
                self._lost.setdefault(peer.slot, []).append(peer)

    def look(self, peer: Peer) -> PeerMemory | None:
        """The arena that a client has brought, if it has."""
        found = self.listener.arena(peer.ticket) if self.listener is not None and peer.ticket else None
        peer.outbox.shared = found is not None
        if found is None:
            peer.memory = None
        elif peer.memory is None or peer.memory.memory is not found:
            peer.memory = PeerMemory(found, peer.job.shard.places)
        return peer.memory

    def hold(self, peer: Peer, frame: int) -> Array | None:
        """All of a client's arena, to be read for a frame; None where it has brought none."""
        memory = self.look(peer)
        if memory is None:
            return None
        found = memory.hold(partial(self._let_go, peer, frame))
        peer.holds += 1
        return found

    def settled(self) -> Iterator[Peer]:
        """The connections that can be told that bytes were let go."""
        while self._gone:
            peer, frame = self._gone.popleft()
            peer.holds -= 1
            peer.released.append(frame)
            if not peer.holds:
                self._forget(peer)
            here = peer.job.links.get(peer.slot)
            if here is not None:
                yield here

    def _forget(self, peer: Peer) -> None:
        """Nothing of a connection is read any more. That of a slot of which nothing is left has no entry."""
        of_slot = self._lost.get(peer.slot, [])
        if peer in of_slot:
            of_slot.remove(peer)
            if not of_slot:
                del self._lost[peer.slot]

    def _let_go(self, peer: Peer, frame: int) -> None:
        self._gone.append((peer, frame))
        self._wake()


# --- The connections of a shard's job, and what is to leave on them ---------------------------------------------------


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
    """`peers`, by the identity that the socket gives them, have said Hello to the `job`. `outgoing` collects what is to
    be sent at once; `waiting` are the connections that may have values or receipts besides."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.job: Job | None = None
        self.peers: dict[bytes, Peer] = {}
        self.outgoing: list[Outgoing] = []
        self.waiting: dict[bytes, Peer] = {}
        self.counts = Counts()
        self.arenas = PeerArenas(let_go)

    def say(self, identity: bytes, message: Message) -> None:
        """Sends a message before all values that have not left."""
        self.outgoing.append((identity, encode(message)))

    def due(self, peer: Peer) -> None:
        """It may have something to be sent, if it is a peer still: its own message may have lost it, or its job."""
        if self.peers.get(peer.identity) is peer:
            self.waiting[peer.identity] = peer

    def is_here(self, peer: Peer) -> bool:
        """Whether it was not lost."""
        return self.peers.get(peer.identity) is peer

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten. No harm if it is none."""
        self.waiting.pop(identity, None)
        peer = self.peers.pop(identity, None)
        if peer is None:
            return
        job = peer.job
        is_slots = job.links.get(peer.slot) is peer
        if is_slots:
            peer.park()
        else:
            peer.close()
        self.arenas.lose(peer)
        if is_slots:
            job.parked[peer.slot] = peer
            del job.links[peer.slot]

    def drop(self, job: Job, reason: str) -> None:
        """The job is gone, and its connections are told and lost."""
        self.job = None
        for peer in list(job.links.values()):
            self.say(peer.identity, Refused(RefusalCode.CLOSED, reason[:2048]))
            self.lose(peer.identity)

    def refuse(self, identity: bytes, error: ProtocolError) -> None:
        """What a peer said is none of this format, or asks for too much: it is told, and forgotten."""
        self.counts.malformed += 1
        self.say(identity, Refused(RefusalCode.MALFORMED, str(error)[:2048]))
        self.lose(identity)

    def refuse_request(self, peer: Peer, request: int, error: PushRefusedError) -> None:
        """What a request asks for contradicts what is there."""
        self.counts.refused += 1
        self.say(peer.identity, Failed(request, FailureCode.REFUSED, str(error)[:2048]))
