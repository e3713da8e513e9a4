"""The clients of a shard's job, from their Hello to their end: who may speak, who is replaced, silent, lost or gone.

Pure. A client is a process that fills a slot. It has one connection at a time, by whose identity it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from weft_kvstore.arrays import Array
from weft_kvstore.description.check import digest
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import Counts, Outgoing, Peer
from weft_kvstore.wire.codec import ProtocolError, PushSegment, encode
from weft_kvstore.wire.messages import FailureCode, Hello, Message, RefusalCode, Refused, Welcome

# --- How a client begins, and how it ends -----------------------------------------------------------------------------
# what happens                      | what it has asked for  | what left for it        | what it has pushed
# ----------------------------------|------------------------|-------------------------|------------------------------
# lose: its connection is gone      | waits for its next one | leaves again, on that   | stays
# close: its process is gone, as it | is dropped             | is pinned until its     | stays, unless a newer
#   says, was replaced, or lies     |                        | sockets and memory end  |   incarnation fills the slot
# tick: its slot is absent          | stays; what others     | stays                   | stays
#                                   |   wait for of it fails |                         |
# drop: the job is over             | is dropped             | is forgotten            | is dropped
#
# A push that lies in the client's memory is copied before the client may write there again: once it has lost its
# connection, and where its process is gone.


@dataclass(slots=True)
class Job:
    """The job of a shard. By slot: the newest incarnation; its process, connected or not; and when the process that has
    left it was last heard."""

    shard: JobShard
    digest: bytes
    incarnations: dict[int, int] = field(default_factory=dict)
    peers: dict[int, Peer] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.shard.description.job


class Links:
    """`peers`, by the identity that the socket gives their connection, are those of the `job` that are connected.
    `outgoing` collects what is to be sent at once; `waiting` are the peers that may have values or receipts besides.

    `listener` is the name of where clients of this host bring their memory, empty where they cannot; `arenas` are what
    they have brought, while their end is there: see `ArenaListener`. `reading` has the segments of each frame, by its
    client and number, that wait in the client's memory. `leaving` are clients that are gone, while what left for them
    may be read.
    """

    def __init__(self, settings: LinkSettings, boot: bytes) -> None:
        """`boot` is 16 bytes drawn when the process starts."""
        self._settings = settings
        self._boot = boot
        self.job: Job | None = None
        self.peers: dict[bytes, Peer] = {}
        self.outgoing: list[Outgoing] = []
        self.waiting: dict[Peer, None] = {}
        self._closed: dict[tuple[str, int], str] = {}
        """The last job that was dropped, by name and term, and why."""
        self.counts = Counts()
        self.listener = b""
        self.arenas: Mapping[tuple[bytes, int], Array] = {}
        self.reading: dict[tuple[Peer, int], list[PushSegment]] = {}
        self.leaving: list[Peer] = []
        self.welcomed: Callable[[bytes], None] = lambda identity: None
        """Called with the identity of a connection on which a Hello was welcomed: the message received last."""
        self.forgotten: Callable[[bytes], None] = lambda identity: None
        """Called with the identity of a connection that was welcomed and is a client's no more."""

    def open(self, shard: JobShard) -> None:
        """Serves a job from now on."""
        self.job = Job(shard, digest(shard.description))

    def hello(self, identity: bytes, hello: Hello, number: int, now: float) -> None:
        """Welcomes or refuses a client; the connection that its slot had is lost. A Hello that is repeated on its
        connection is answered again, as the answer may be lost."""
        known = self.peers.get(identity)
        if number and known is not None:
            if known.received == number and known.welcome is not None:
                self.outgoing.append((identity, encode(known.welcome, None, number)))
            return
        job = admitted(self.job, known, hello, self._boot)
        if (
            self.job is None and (hello.job, hello.term) in self._closed
        ):  # It was not connected when the job was dropped.
            job = Refused(RefusalCode.CLOSED, self._closed[hello.job, hello.term])
        if isinstance(job, Refused):
            self.counts.refused += 1
            self.lose(identity)
            self.say(identity, job)
            return
        slot, peer = hello.slot, job.peers.get(hello.slot)
        if peer is not None and peer.hello.process != hello.process:
            self.close(peer)
            peer = None
        elif peer is not None:
            if number and hello.session <= peer.hello.session:  # It was repeated, or comes late.
                self.say(identity, Refused(RefusalCode.UNKNOWN_LINK, "this connection was lost: begin a new one"))
                return
            if peer.identity is not None:
                self.lose(peer.identity)
            self._stop_reading(peer)
        if hello.incarnation > job.incarnations.setdefault(slot, hello.incarnation):
            job.incarnations[slot] = hello.incarnation
            job.shard.replace(slot)
        job.left.pop(slot, None)
        if peer is None:
            peer = job.peers[slot] = Peer(hello, job.shard, self._settings, self.counts)
        peer.connect(identity, hello, number, now)
        self.peers[identity] = peer
        self.waiting[peer] = None
        silence_ms = int(self._settings.silence_s * 1000)
        peer.welcome = Welcome(hello.session, self._boot, silence_ms, self.listener)
        self.welcomed(identity)
        self.say(identity, peer.welcome)

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten. No harm if it is none."""
        peer = self.peers.pop(identity, None)
        if peer is not None:
            peer.disconnect()
            self.forgotten(identity)

    def close(self, peer: Peer) -> None:
        """Nobody comes back for what this process has asked for."""
        job, identity = self.job, peer.identity
        assert job is not None
        del job.peers[peer.slot]
        job.left[peer.slot] = peer.heard
        self.waiting.pop(peer, None)
        self._stop_reading(peer)
        peer.close()
        self.leaving.append(peer)
        if identity is not None:
            del self.peers[identity]
            self.forgotten(identity)
        self._release_left()

    def tick(self, now: float, stalled_s: float) -> None:
        """Loses connections that have been silent for too long, and fails what waits for slots that have been so, or
        have left. `stalled_s`: how long the shard has stood still, and received nothing."""
        job = self.job
        if job is None:
            return
        job.left = {slot: min(at + stalled_s, now) for slot, at in job.left.items()}
        silence_s = self._settings.silence_s
        absent = {slot: f"left {now - at:.1f} s ago" for slot, at in job.left.items() if now - at > silence_s}
        for slot, peer in job.peers.items():
            peer.heard = min(peer.heard + stalled_s, now)
            if now - peer.heard > silence_s:
                absent[slot] = f"has been silent for {now - peer.heard:.1f} s"
                if peer.identity is not None:
                    self.lose(peer.identity)
        for peer in self.peers.values() if absent else ():
            waits = [(request, job.shard.lacks(wait, absent)) for request, wait in peer.pulls.items()]
            for request, step in peer.measures.items():
                reason, missing = job.shard.step_waits_for(step)
                waits.append((request, (reason, [slot for slot in missing if slot in absent])))
            for request, found in waits:
                if found is not None and found[1]:
                    slot = found[1][0]
                    self.fail(peer, request, FailureCode.LOST, f"slot {slot} {absent[slot]}: {found[0]}")

    def drop(self, reason: str) -> None:
        """Ends the job: its clients are told the reason, and closed."""
        job, reason = self.job, reason[:2048]
        assert job is not None
        self.reading.clear()
        for peer in list(job.peers.values()):
            self.say(peer.identity, Refused(RefusalCode.CLOSED, reason))
            self.close(peer)
        self.leaving.clear()
        self.job = None
        self._closed = {(job.name, job.shard.description.term): reason}

    # --- Memory of this host: what the shard reads in a client's, and a client that is gone in the shard's

    def memory_of(self, peer: Peer) -> Array | None:
        """The memory that a client has brought on its connection, if it has, and its end is there."""
        return self.arenas.get((peer.hello.process, peer.hello.session))

    def memory_changed(self) -> None:
        """A client may have brought its memory, or its end may be gone."""
        for peer in self.peers.values():
            peer.outbox.share(shared=self.memory_of(peer) is not None)
        self._release_left()

    def ended(self, identity: bytes) -> None:
        """The socket has no such connection any more, which a client had."""
        for peer in (*(self.job.peers.values() if self.job is not None else ()), *self.leaving):
            peer.connections.discard(identity)
        self._release_left()

    def _release_left(self) -> None:
        for peer in [one for one in self.leaving if not one.connections and self.memory_of(one) is None]:
            self.leaving.remove(peer)
            peer.release()

    def read(self, peer: Peer, frame: int, segments: list[PushSegment]) -> None:
        """These segments of a frame came in the client's memory: once none of them waits there, it is told so."""
        buckets = peer.shard.buckets
        if any(buckets[segment.bucket].reads(peer.slot, segment) for segment in segments):
            self.reading[peer, frame] = segments
        else:
            self.reading.pop((peer, frame), None)
            peer.released.append(frame)
            self.waiting[peer] = None

    def _stop_reading(self, peer: Peer) -> None:
        """The process may write its memory from now on: what waits there is copied."""
        frames = [one for one in self.reading if one[0] is peer]
        for one in frames:
            del self.reading[one]
        if frames:
            peer.shard.copy_pending(peer.slot)

    # --- What is said to a client

    def say(self, identity: bytes | None, message: Message) -> None:
        """Sends a message before all values that have not left; nothing where there is no connection."""
        if identity is None:
            return
        peer = self.peers.get(identity)
        if peer is None or type(message) is Refused:  # It ends the connection, whatever else was lost.
            self.outgoing.append((identity, encode(message)))
        else:
            self.outgoing.append((identity, peer.say(message)))

    def refuse(self, identity: bytes, error: ProtocolError) -> None:
        """A message is malformed, or asks for too much: its client is told so, and closed."""
        self.counts.malformed += 1
        self.say(identity, Refused(RefusalCode.MALFORMED, str(error)[:2048]))
        if (peer := self.peers.get(identity)) is not None:
            self.close(peer)

    def fail(self, peer: Peer, request: int, code: FailureCode, reason: str) -> None:
        """A request cannot be answered. What was to be sent for it is not."""
        self.counts.refused += code is FailureCode.REFUSED
        self.say(peer.identity, peer.fail(request, code, reason))


# --- Who may speak with a shard: what a Hello must agree with ---------------------------------------------------------


SHOWN_DIGITS: Final = 12
"""Of a description's digest, where people compare two."""


def admitted(job: Job | None, same: Peer | None, hello: Hello, boot: bytes) -> Job | Refused:
    """The job, or why the client that says this Hello may not join it. `same` is the client that its connection has
    been that of so far."""
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
    if hello.shard != job.shard.shard:
        text = (
            f"job {hello.job!r}: this is shard {job.shard.shard}, and the client takes it for shard {hello.shard}: "
            "endpoints= are in the order of the description's shards, and each shard is started with its --shard NUMBER"
        )
        return Refused(RefusalCode.OTHER_DESCRIPTION, text)
    if hello.slot >= job.shard.description.slots:
        text = f"slot {hello.slot}: job {hello.job!r} has slots 0 to {job.shard.description.slots - 1}"
        return Refused(RefusalCode.NO_SUCH_SLOT, text)
    newest = job.incarnations.get(hello.slot, hello.incarnation)
    if hello.incarnation < newest:
        text = f"slot {hello.slot}: incarnation {hello.incarnation} was replaced by {newest}"
        return Refused(RefusalCode.STALE_INCARNATION, text)
    held = job.peers.get(hello.slot)
    if hello.boot == boot and (held is None or held.hello.process != hello.process):
        text = f"slot {hello.slot}: another process has had it since, so that what this one had under way is lost"
        return Refused(RefusalCode.STALE_INCARNATION, text)
    if held is not None and held.identity is None:
        held = None
    if held is not None and held.hello.incarnation == hello.incarnation:
        if held.hello.process != hello.process:
            detail = f"slot {hello.slot} is taken by another process that is alive, as incarnation {hello.incarnation}"
            text = f"{detail}; use another slot, or a higher incarnation= to replace it"
            return Refused(RefusalCode.BUSY, text)
        if held.hello.session > hello.session:
            text = f"slot {hello.slot}: connection {hello.session} was replaced by {held.hello.session}"
            return Refused(RefusalCode.STALE_INCARNATION, text)
    if same is not None and same is not held:
        return Refused(RefusalCode.MALFORMED, f"slot {hello.slot}: this connection belongs to slot {same.slot}")
    return job
