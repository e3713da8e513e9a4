"""The connections of a shard: who may speak with it, what is to leave, and the arenas that its host's clients brought.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.same_host.memory import PeerMemory, SharedMemory, held
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.peer import Job, Peer
from weft_kvstore.statistics import SharedBytes
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import Failed, FailureCode, Hello, Message, RefusalCode, Refused, Welcome

Outgoing: TypeAlias = tuple[bytes, list[Buffer]]


# --- The arenas that clients of a shard's host have brought, by connection --------------------------------------------


class Arenas(Protocol):
    """Where clients of this host bring their memory, as the shard's core sees it: see `ArenaListener`."""

    name: bytes
    lent: SharedMemory | None
    arenas: dict[tuple[bytes, int], PeerMemory]


class PeerArenas:
    """`listener` is where they are brought; None where the shard shares no memory. `wake` is called when bytes of one
    are let go, on whatever thread that happens; `settle` is for the shard's own thread, where anything is in `gone`.

    What a slot's lost connection has brought may be read for as long as before. Until it is not, the next connection is
    told nothing: what it sends again may be in the same bytes. Invariant: `_lost` has no slot without a connection of
    which something is read; a connection's `Peer.earlier` is its slot's list, if there was one when it began.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.listener: Arenas | None = None
        self._wake = wake
        self.gone: deque[tuple[Peer, int]] = deque()
        self._lost: dict[int, list[Peer]] = {}

    def begin(self, peer: Peer) -> bytes:
        """A new connection is told first that nothing of earlier ones is read; the listener's name, which is empty
        where there is none."""
        if self.listener is None:
            return b""
        peer.earlier = self._lost.get(peer.slot, [])
        peer.released.append(0)
        return self.listener.name

    def lose(self, peer: Peer) -> None:
        """A connection is gone."""
        if peer.holds:
            self._lost.setdefault(peer.slot, []).append(peer)

    def look(self, peer: Peer) -> Array | None:
        """The memory that a client has brought, if it has, and its end is there."""
        if peer.arena is None and self.listener is not None:
            peer.arena = self.listener.arenas.get((peer.hello.process, peer.hello.session))
        memory = None if peer.arena is None else peer.arena.memory
        peer.outbox.shared = memory is not None
        return memory

    def hold(self, peer: Peer, frame: int) -> Array | None:
        """All of a client's arena, to be read for a frame; None where it has brought none."""
        memory = self.look(peer)
        if memory is None:
            return None
        found = held(memory, partial(self._let_go, peer, frame))
        peer.holds += 1
        return found

    def settle(self, due: Callable[[Peer], None]) -> None:
        """Calls `due` with the connections that can be told that bytes were let go."""
        while self.gone:
            peer, frame = self.gone.popleft()
            peer.holds -= 1
            peer.released.append(frame)
            if not peer.holds:
                self._forget(peer)
            here = peer.job.links.get(peer.slot)
            if here is not None:
                due(here)

    def _forget(self, peer: Peer) -> None:
        """Nothing of a connection is read any more. That of a slot of which nothing is left has no entry."""
        of_slot = self._lost.get(peer.slot, [])
        if peer in of_slot:
            of_slot.remove(peer)
            if not of_slot:
                del self._lost[peer.slot]

    def _let_go(self, peer: Peer, frame: int) -> None:
        self.gone.append((peer, frame))
        self._wake()


# --- The connections of a shard's job, and what is to leave on them ---------------------------------------------------


@dataclass(slots=True)
class Counts:
    """Counters that the shard's metrics show."""

    frames_sent: int = 0
    frames_received: int = 0
    malformed: int = 0
    refused: int = 0
    welcomed: int = 0
    unknown_links: int = 0
    bytes_received: int = 0
    shared: SharedBytes = field(default_factory=SharedBytes)


class Links:
    """`peers`, by the identity that the socket gives them, have said Hello to the `job`. `outgoing` collects what is to
    be sent at once; `waiting` are the connections that may have values or receipts besides."""

    def __init__(self, settings: LinkSettings, boot: bytes, let_go: Callable[[], None]) -> None:
        """`boot` is 16 bytes drawn when the process starts."""
        self._settings = settings
        self._boot = boot
        self.job: Job | None = None
        self.peers: dict[bytes, Peer] = {}
        self.outgoing: list[Outgoing] = []
        self.waiting: dict[bytes, Peer] = {}
        self._closed: dict[tuple[str, int], str] = {}
        """The last job that was dropped, by name and term, and why."""
        self.counts = Counts()
        self.arenas = PeerArenas(let_go)

    def hello(self, identity: bytes, hello: Hello, number: int, now: float) -> None:
        """Welcomes whoever says this, or refuses; the slot's connection so far, if there is one, is lost. Who says it
        again, as message 1, has not heard the answer perhaps."""
        known = self.peers.get(identity)
        if number and known is not None:
            if known.received == number and known.welcome is not None:
                self.outgoing.append((identity, encode(known.welcome, None, number)))
            return
        job = admitted(self.job, known, hello)
        if self.job is None and (hello.job, hello.term) in self._closed:  # It was not connected when that was told.
            job = Refused(RefusalCode.CLOSED, self._closed[hello.job, hello.term])
        if isinstance(job, Refused):
            self.counts.refused += 1
            self.lose(identity)
            self.say(identity, job)
            return
        before = job.links.get(hello.slot)
        if before is not None:
            self.lose(before.identity)
        job.come(hello, now)
        peer = Peer(identity, hello, job, self._settings, now)
        peer.broken = job.take_broken(hello.slot, hello.process)
        peer.shared = self.counts.shared
        self.peers[identity] = job.links[hello.slot] = peer
        listener = self.arenas.begin(peer)
        if listener:
            self.due(peer)
        peer.received = number
        silence_ms = int(self._settings.silence_s * 1000)
        peer.welcome = Welcome(hello.session, self._boot, silence_ms, listener)
        self.counts.welcomed += 1
        self.say(identity, peer.welcome)

    def say(self, identity: bytes, message: Message) -> None:
        """Sends a message before all values that have not left."""
        peer = self.peers.get(identity)
        if peer is None or type(message) is Refused:  # It ends the connection, whatever else was lost.
            self.outgoing.append((identity, encode(message)))
        else:
            peer.sent += 1
            self.outgoing.append((identity, encode(message, None, peer.sent)))

    def due(self, peer: Peer) -> None:
        """It may have something to be sent, unless it is lost: by its own message, or with its job."""
        if not peer.is_lost:
            self.waiting[peer.identity] = peer

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten. No harm if it is none."""
        self.waiting.pop(identity, None)
        peer = self.peers.pop(identity, None)
        if peer is None:
            return
        peer.is_lost = True
        job = peer.job
        is_slots = job.links.get(peer.slot) is peer
        if is_slots:
            peer.disconnect()
        else:
            peer.close()
        self.arenas.lose(peer)
        if is_slots:
            job.broken[peer.slot] = peer
            del job.links[peer.slot]

    def drop(self, job: Job, reason: str) -> None:
        """The job is gone, and its connections are told and lost."""
        self.job = None
        reason = reason[:2048]
        self._closed = {(job.name, job.shard.description.term): reason}
        for peer in list(job.links.values()):
            self.say(peer.identity, Refused(RefusalCode.CLOSED, reason))
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


# --- Who may speak with a shard: what a Hello must agree with ---------------------------------------------------------


SHOWN_DIGITS: Final = 12
"""Of a description's digest, where people compare two."""


def admitted(job: Job | None, same: Peer | None, hello: Hello) -> Job | Refused:
    """The job of whoever says this Hello, on a connection that has said one before where it is that of `same`."""
    term = job.shard.description.term if job is not None and job.name == hello.job else None
    if term is not None and term > hello.term:
        text = f"job {hello.job!r} is in term {term} here, term {hello.term} is over"
        return Refused(RefusalCode.STALE_TERM, text)
    if job is None or term != hello.term:
        return Refused(RefusalCode.UNKNOWN_JOB, f"job {hello.job!r}, term {hello.term} is not open on this shard")
    if hello.description != job.digest:
        text = (
            f"job {hello.job!r}: the client has another description of the store than shard {job.shard.shard} "
            f"(digests {hello.description.hex()[:SHOWN_DIGITS]} and {job.digest.hex()[:SHOWN_DIGITS]}, as --check says "
            "of a file): connect with the file that the shard was started with, or restart the shards with this one"
        )
        return Refused(RefusalCode.OTHER_DESCRIPTION, text)
    if hello.slot >= job.shard.description.slots:
        text = f"slot {hello.slot}: job {hello.job!r} has slots 0 to {job.shard.description.slots - 1}"
        return Refused(RefusalCode.NO_SUCH_SLOT, text)
    newest = job.incarnations.get(hello.slot, hello.incarnation)
    if hello.incarnation < newest:
        text = f"slot {hello.slot}: incarnation {hello.incarnation} was replaced by {newest}"
        return Refused(RefusalCode.STALE_INCARNATION, text)
    held = job.links.get(hello.slot)
    if held is not None and held.hello.incarnation == hello.incarnation:
        if held.hello.process != hello.process:
            told = f"slot {hello.slot} is taken by another process that is alive, as incarnation {hello.incarnation}"
            text = f"{told}; use another slot, or a higher incarnation= to replace it"
            return Refused(RefusalCode.BUSY, text)
        if held.hello.session > hello.session:
            text = f"slot {hello.slot}: connection {hello.session} was replaced by {held.hello.session}"
            return Refused(RefusalCode.STALE_INCARNATION, text)
    if same is not None and same is not held:
        return Refused(RefusalCode.MALFORMED, f"slot {hello.slot}: this connection belongs to slot {same.slot}")
    return job
