"""The clients of a shard's job, from their Hello to their end: who may speak, who is replaced, silent, lost or gone.

Pure. A client is a process that fills a slot. It has one connection at a time, by whose identity it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from weft_kvstore.arrays import Array
from weft_kvstore.description.check import digest
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import SHARD_COUNTERS, Outgoing, Peer
from weft_kvstore.wire.codec import ProtocolError, PushSegment, encode
from weft_kvstore.wire.messages import FailureCode, Hello, Message, RefusalCode, Refused, Welcome

SHOWN_DIGITS: Final = 12
"""Of a description's digest, where people compare two."""

# --- How a client begins, and how it ends -----------------------------------------------------------------------------
# what happens                      | what it has asked for  | what left for it        | what it has pushed
# ----------------------------------|------------------------|-------------------------|------------------------------
# disconnect: its connection is     | waits for its next one | leaves again, on that   | stays
#   gone                            |                        |                         |
# close: its process is gone, as it | is dropped             | is pinned until its     | stays, unless a newer
#   says, was replaced, or lies     |                        | sockets and memory end  |   incarnation fills the slot
# tick: its slot is absent          | stays; what others     | stays                   | stays
#                                   |   wait for of it fails |                         |
# close_job: the job is over        | is dropped             | is forgotten            | is dropped
#
# A push that lies in the client's memory is copied before the client may write there again: once it has lost its
# connection, and where its process is gone.


class Links:
    """`job` is the shard of the job that is served. By slot: `clients`, connected or not; the newest incarnation; and
    when a client that has `left` was last heard. `peers` are the clients that are connected, by the identity that the
    socket gives their connection.

    `outgoing` collects what is to be sent at once; `waiting` are the peers that may have values or receipts besides.

    `listener` is the name of where clients of this host bring their memory, empty where they cannot; `arenas` are what
    they have brought, while their end is there: see `ArenaListener`. `in_place` has the segments of each frame, by its
    client and number, that wait in the client's memory. `leaving` are clients that are gone, while what left for them
    may be read.
    """

    def __init__(self, settings: LinkSettings, boot: bytes) -> None:
        """`boot` is 16 bytes drawn when the process starts."""
        self._settings = settings
        self._boot = boot
        self.job: JobShard | None = None
        self._digest = b""
        self.clients: dict[int, Peer] = {}
        self._incarnations: dict[int, int] = {}
        self._left: dict[int, float] = {}
        self.peers: dict[bytes, Peer] = {}
        self.outgoing: list[Outgoing] = []
        self.waiting: dict[Peer, None] = {}
        self._closed: dict[tuple[str, int], str] = {}
        """The last job that was dropped, by name and term, and why."""
        self.counts = dict.fromkeys(SHARD_COUNTERS, 0)
        self.listener = b""
        self.arenas: Mapping[tuple[bytes, int], Array] = {}
        self.in_place: dict[tuple[Peer, int], list[PushSegment]] = {}
        self.leaving: list[Peer] = []
        self.welcomed: Callable[[bytes], None] = lambda identity: None
        """Called with the identity of a connection on which a Hello was welcomed: the message received last."""
        self.forgotten: Callable[[bytes], None] = lambda identity: None
        """Called with the identity of a connection that was welcomed and is a client's no more."""

    def open(self, job: JobShard) -> None:
        """Serves a job from now on."""
        self._incarnations, self._left = {}, {}
        self._digest = digest(job.description)
        self.job = job

    def hello(self, identity: bytes, hello: Hello, number: int, now: float) -> None:
        """Welcomes or refuses a client; the connection that its slot had is lost. A Hello that is repeated on its
        connection is answered again, as the answer may be lost."""
        known = self.peers.get(identity)
        if number and known is not None:
            if known.received == number:
                self.outgoing.append((identity, encode(known.welcome, None, number)))
            return
        job = self._admitted(known, hello)
        if isinstance(job, Refused):
            self.counts["refused_requests"] += 1
            self.disconnect(identity)
            self.say(identity, job)
            return
        slot, peer = hello.slot, self.clients.get(hello.slot)
        if peer is not None and peer.hello.process != hello.process:
            self.close(peer)
            peer = None
        elif peer is not None:
            if number and hello.session <= peer.hello.session:  # It was repeated, or comes late.
                self.say(identity, Refused(RefusalCode.UNKNOWN_LINK, "this connection was lost: begin a new one"))
                return
            if peer.identity is not None:
                self.disconnect(peer.identity)
            self._copy_in_place(peer)
        if hello.incarnation > self._incarnations.setdefault(slot, hello.incarnation):
            self._incarnations[slot] = hello.incarnation
            job.replace(slot)
        self._left.pop(slot, None)
        if peer is None:
            peer = Peer(hello, job, self._settings, self.counts)
        silence_ms = int(self._settings.silence_s * 1000)
        welcome = Welcome(hello.session, self._boot, silence_ms, self.listener)
        peer.connect(identity, hello, welcome, number, now)
        self.clients[slot] = self.peers[identity] = peer
        self.waiting[peer] = None
        self.welcomed(identity)
        self.say(identity, welcome)

    def _admitted(self, same: Peer | None, hello: Hello) -> JobShard | Refused:
        """The job, or why the client that says this Hello may not join it. `same` is the client that its connection has
        been that of so far."""
        job, slot = self.job, hello.slot
        name = f"job {hello.job!r}"
        term = job.description.term if job is not None and job.description.job == hello.job else None
        if term is not None and term > hello.term:
            return Refused(RefusalCode.STALE_TERM, f"{name} is in term {term} here, term {hello.term} is over")
        if job is None or term != hello.term:
            closed = self._closed.get((hello.job, hello.term))  # It was not connected when the job was dropped.
            code, text = RefusalCode.UNKNOWN_JOB, f"{name}, term {hello.term} is not open on this shard"
            return Refused(code, text) if closed is None else Refused(RefusalCode.CLOSED, closed)
        if hello.description != self._digest:
            text = (
                f"{name}: the client has another description of the store than shard {job.shard} "
                f"(digests {hello.description.hex()[:SHOWN_DIGITS]} and {self._digest.hex()[:SHOWN_DIGITS]}, as "
                "--check says of a file): connect with the file that the shard was started with, or restart the shards "
                "with this one"
            )
            return Refused(RefusalCode.OTHER_DESCRIPTION, text)
        if hello.shard != job.shard:
            text = (
                f"{name}: this is shard {job.shard}, and the client takes it for shard {hello.shard}: endpoints= are "
                "in the order of the description's shards, and each shard is started with its --shard NUMBER"
            )
            return Refused(RefusalCode.OTHER_DESCRIPTION, text)
        if slot >= job.description.slots:
            text = f"slot {slot}: {name} has slots 0 to {job.description.slots - 1}"
            return Refused(RefusalCode.NO_SUCH_SLOT, text)
        newest = self._incarnations.get(slot, hello.incarnation)
        if hello.incarnation < newest:
            text = f"slot {slot}: incarnation {hello.incarnation} was replaced by {newest}"
            return Refused(RefusalCode.STALE_INCARNATION, text)
        client = self.clients.get(slot)
        if hello.boot == self._boot and (client is None or client.hello.process != hello.process):
            text = f"slot {slot}: another process has had it since, so that what this one had under way is lost"
            return Refused(RefusalCode.STALE_INCARNATION, text)
        if client is not None and client.identity is None:
            client = None
        if client is not None and client.hello.incarnation == hello.incarnation:
            if client.hello.process != hello.process:
                detail = f"slot {slot} is taken by another process that is alive, as incarnation {hello.incarnation}"
                text = f"{detail}; use another slot, or a higher incarnation= to replace it"
                return Refused(RefusalCode.BUSY, text)
            if client.hello.session > hello.session:
                text = f"slot {slot}: connection {hello.session} was replaced by {client.hello.session}"
                return Refused(RefusalCode.STALE_INCARNATION, text)
        if same is not None and same is not client:
            return Refused(RefusalCode.MALFORMED, f"slot {slot}: this connection belongs to slot {same.slot}")
        return job

    def disconnect(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten. No harm if it is none."""
        peer = self.peers.pop(identity, None)
        if peer is not None:
            peer.disconnect()
            self.forgotten(identity)

    def close(self, peer: Peer) -> None:
        """Nobody comes back for what this process has asked for."""
        self._copy_in_place(peer)  # First: without memory for it the job fails, of which all clients are told.
        identity = peer.identity
        del self.clients[peer.slot]
        self._left[peer.slot] = peer.heard
        self.waiting.pop(peer, None)
        peer.close()
        self.leaving.append(peer)
        if identity is not None:
            self.peers.pop(identity, None)
            self.forgotten(identity)
        self._release_left()

    def tick(self, now: float, stalled_s: float) -> None:
        """Loses connections that have been silent for too long, and fails what waits for slots that have been so, or
        have left. `stalled_s`: how long the shard has stood still, and received nothing."""
        job = self.job
        if job is None:
            return
        self._left = {slot: min(at + stalled_s, now) for slot, at in self._left.items()}
        silence_s = self._settings.silence_s
        absent = {slot: f"left {now - at:.1f} s ago" for slot, at in self._left.items() if now - at > silence_s}
        for slot, peer in self.clients.items():
            peer.heard = min(peer.heard + stalled_s, now)
            if now - peer.heard > silence_s:
                absent[slot] = f"has been silent for {now - peer.heard:.1f} s"
                if peer.identity is not None:
                    self.disconnect(peer.identity)
        for peer in self.peers.values() if absent else ():
            waits = [(request, *job.waits_for(wait, absent)) for request, wait in peer.pulls.items()]
            waits += [(request, *job.step_waits_for(step)) for request, step in peer.measures.items()]
            for request, reason, missing in waits:
                if lost := [one for one in missing if one in absent]:
                    self.fail(peer, request, FailureCode.LOST, f"slot {lost[0]} {absent[lost[0]]}: {reason}")

    def close_job(self, reason: str) -> None:
        """Ends the job: its clients are told the reason, and closed."""
        job, reason = self.job, reason[:2048]
        assert job is not None
        self.in_place.clear()
        for peer in list(self.clients.values()):
            self.say(peer.identity, Refused(RefusalCode.CLOSED, reason))
            self.close(peer)
        self.leaving.clear()
        self.job = None
        self._closed = {(job.description.job, job.description.term): reason}

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
        for peer in (*self.clients.values(), *self.leaving):
            peer.connections.discard(identity)
        self._release_left()

    def _release_left(self) -> None:
        for peer in [one for one in self.leaving if not one.connections and self.memory_of(one) is None]:
            self.leaving.remove(peer)
            peer.release()

    def update_in_place(self, peer: Peer, frame: int) -> None:
        """Once none of a frame's segments waits in the client's memory, it is told so."""
        buckets = peer.shard.buckets
        segments = self.in_place.get((peer, frame), ())
        if not any(buckets[segment.bucket].reads(peer.slot, segment) for segment in segments):
            self.in_place.pop((peer, frame), None)
            peer.released.append(frame)
            self.waiting[peer] = None

    def _copy_in_place(self, peer: Peer) -> None:
        """The process may write its memory from now on: what waits there is copied."""
        frames = [one for one in self.in_place if one[0] is peer]
        for bucket in peer.shard.buckets.values() if frames else ():
            bucket.copy_pending(peer.slot)
        for one in frames:
            del self.in_place[one]

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
        self.counts["malformed_messages"] += 1
        self.say(identity, Refused(RefusalCode.MALFORMED, str(error)[:2048]))
        if (peer := self.peers.get(identity)) is not None:
            self.close(peer)

    def fail(self, peer: Peer, request: int, code: FailureCode, reason: str) -> None:
        """A request cannot be answered. What was to be sent for it is not."""
        self.counts["refused_requests"] += code is FailureCode.REFUSED
        self.say(peer.identity, peer.fail(request, code, reason))
