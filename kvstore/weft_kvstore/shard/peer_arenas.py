"""The arenas that clients of a shard's host have brought, by connection. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from weft_kvstore.arrays.array import Array
from weft_kvstore.same_host.peer_memory import Arenas, PeerMemory
from weft_kvstore.shard.door import Job, Namespace
from weft_kvstore.shard.peer import Peer
from weft_kvstore.shard.releases import Releases


class PeerArenas:
    """`door` is where they are brought; None where the shard shares no memory. `let_go` is called when bytes of one
    are let go, on whatever thread that happens."""

    def __init__(self, jobs: Mapping[Namespace, Job], let_go: Callable[[], None]) -> None:
        self.door: Arenas | None = None
        self._jobs = jobs
        self._releases = Releases(let_go)

    def begin(self, peer: Peer) -> bytes:
        """A new connection gets a ticket; the door's name, which is empty where there is none."""
        if self.door is None:
            return b""
        peer.ticket = self.door.expect(self._jobs[peer.job].shard.places.nbytes)
        self._releases.begin(peer)
        return self.door.name

    def lose(self, peer: Peer) -> None:
        """A connection is gone."""
        if self.door is not None:
            self.door.forget(peer.ticket)
            peer.memory = None
            self._releases.lose(peer)

    def look(self, peer: Peer) -> PeerMemory | None:
        """The arena that a client has brought, if it has."""
        found = self.door.arena(peer.ticket) if self.door is not None and peer.ticket else None
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
