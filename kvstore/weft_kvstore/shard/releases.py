"""Frames whose bytes lie in clients' arenas: who still reads them, and whom to tell that nobody does. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from weft_kvstore.arrays.array import Array
from weft_kvstore.same_host.peer_memory import PeerMemory
from weft_kvstore.shard.peer import Peer


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
