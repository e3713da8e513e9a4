"""The connections of a shard, and what comes and leaves on them: frames of gradients, values and ids, pulls, and their
answers, by messages or through clients' arenas. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.bucket.bucket import STAYS_BYTES, PlainBucket
from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.merging.waiting import PullWait
from weft_kvstore.same_host.peers import Arenas, PeerMemory, placed
from weft_kvstore.shard.job_shard import JobShard, Taken
from weft_kvstore.shard.merger import BATCH_BYTES, Merger
from weft_kvstore.shard.peer import MAX_IDS_BYTES, MAX_OPEN_PULLS, Job, Peer
from weft_kvstore.statistics import SharedBytes
from weft_kvstore.tables.state import TableState
from weft_kvstore.wire.codec import ProtocolError, Run, encode, payload_bytes, runs_of
from weft_kvstore.wire.messages import (
    Failed,
    FailureCode,
    Message,
    PayloadKind,
    Pull,
    Push,
    PushRefused,
    Reading,
    RefusalCode,
    Refused,
)

Outgoing: TypeAlias = tuple[bytes, list[Buffer]]


# --- The arenas that clients of a shard's host have brought, by connection --------------------------------------------


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
    """What `ShardStatistics` tells."""

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

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.job: Job | None = None
        self.peers: dict[bytes, Peer] = {}
        self.outgoing: list[Outgoing] = []
        self.waiting: dict[bytes, Peer] = {}
        self.counts = Counts()
        self.arenas = PeerArenas(let_go)

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


# --- What a client's frame carries, run by run, taken into a job on a shard -------------------------------------------


def own_run(shard: JobShard, run: Run) -> Run:
    """The same run, copied out of the client's arena where more is done with its bytes than arithmetic: there they may
    be others at each look. Raises ProtocolError for what may not lie there."""
    if run.arena is None or shard.reads_in_place(run):
        return run
    if run.place:
        raise ProtocolError(f"Push.place: 1 for a run of bucket {run.bucket}, which has to be copied")
    own = memoryview(np.frombuffer(run.payload, np.uint8).copy())  # type: ignore[arg-type]  # an array is a buffer
    return run._replace(payload=own, arena=None)


def take_run(shard: JobShard, peer: Peer, run: Run) -> Taken:
    """Takes in a run of a frame.

    Raises ProtocolError where it contradicts the description, PushRefusedError where it contradicts what is there.
    """
    if run.arena is not None:
        run = own_run(shard, run)
    match run.payload_kind:
        case PayloadKind.GRADIENT:
            return shard.accept_chunks(peer.slot, run) if run.chunks else shard.accept(peer.slot, run)
        case PayloadKind.VALUE:
            origin = (peer.hello.process, run.request)
            take = shard.sets.chunks if run.chunks else shard.sets.slices
            return take(peer.slot, run, origin)
        case PayloadKind.RESTORED:
            return shard.sets.restored(peer.slot, run, (peer.hello.process, run.request))
        case PayloadKind.IDS:
            return _ids(shard, peer, run)
        case other:
            raise ProtocolError(f"Push.payload_kind: {other} is none that there is")


def _ids(shard: JobShard, peer: Peer, run: Run) -> Taken:
    wait = peer.pulls.get(run.request)
    if wait is None:
        return Taken()  # It was given up meanwhile.
    before = wait.ids_bytes
    taken = shard.pulls.ids(wait, run)
    peer.ids_bytes += wait.ids_bytes - before
    if peer.ids_bytes > MAX_IDS_BYTES:
        raise ProtocolError(f"Push.request: {peer.ids_bytes} bytes of ids wait already")
    return taken


# --- A message of pulls as what it asks for: one wait for each request ------------------------------------------------


_READINGS: Final = {int(one): one for one in Reading}


def asked_pulls(shard: JobShard, peer: Peer, pull: Pull) -> list[tuple[PullWait, list[TableState]]]:
    """The pulls of a message, open on the peer from now on, each with the units that have to answer it. Raises
    ProtocolError."""
    alike = zip(pull.version, pull.state, pull.reading, pull.compressed, strict=True)
    columns = (pull.request, alike, pull.bucket, pull.first, pull.count, pull.chunks)
    in_place = {request for request, place in zip(pull.request, pull.place, strict=True) if place} if pull.place else ()
    ask = shard.pulls.ask
    asked: dict[int, tuple[PullWait, list[TableState]]] = {}
    for request, (version, state, reading, compressed), bucket, first, count, chunks in zip(*columns, strict=True):
        if request not in asked:
            if reading not in _READINGS:
                raise ProtocolError(f"Pull.reading: {reading} is none that there is")
            if request in peer.pulls:
                raise ProtocolError(f"Pull.request: {request} is open already")
            wait = PullWait(
                peer,
                request,
                version,
                slot=peer.slot,
                state=bool(state),
                reading=_READINGS.get(reading, Reading.OWN),
                compressed=bool(compressed),
            )
            wait.place = request in in_place
            wait.priority = pull.priority
            asked[request] = wait, []
            peer.pulls[request] = wait
        else:
            wait, units = asked[request]
            same = wait.version == version and wait.state == bool(state) and wait.compressed == bool(compressed)
            if not same or wait.reading != reading:
                raise ProtocolError(f"Pull.request: {request} asks in two ways")
        wait, units = asked[request]
        if peer.open_entries >= MAX_OPEN_PULLS:
            raise ProtocolError(f"Pull.request: {request}: {MAX_OPEN_PULLS} runs are asked for already")
        wait.entries += 1
        peer.open_entries += 1
        units += ask(wait, bucket, first, count, chunks)
    for wait, _ in asked.values() if peer.parked else ():
        if not wait.chunks:
            peer.answer_again(wait)
    return list(asked.values())


# --- How a shard's answers get to the connections that have asked -----------------------------------------------------


MAX_QUEUED_RUNS: Final = 1 << 16
"""Runs of values that may wait for one connection, however few bytes they have: each costs the shard some time."""


class Answers:
    """The `Answering` of a shard with connections; `fail` is what becomes of its job if it cannot go on."""

    def __init__(self, links: Links, fail: Callable[[str], None]) -> None:
        self.fail = fail
        self._links = links

    def answer(self, wait: PullWait, unit: TableState) -> Iterator[None]:
        """See `Answering`."""
        peer: Peer = wait.link
        if not self._may_queue(peer):
            return
        for _ in peer.answer(wait, unit):
            self._links.due(peer)
            yield
        if not wait.dropped:
            self._links.due(peer)

    def answer_range(self, wait: PullWait, bucket: PlainBucket, first: int, stop: int) -> None:
        """See `Answering`."""
        peer: Peer = wait.link
        if self._may_queue(peer):
            peer.answer_range(wait, bucket, first, stop)
            self._links.due(peer)

    def refuse(self, wait: PullWait, reason: str) -> None:
        """See `Answering`."""
        peer: Peer = wait.link
        peer.cancel(wait.request)
        self._links.say(peer.identity, Failed(wait.request, FailureCode.PASSED, reason[:2048]))

    def _may_queue(self, peer: Peer) -> bool:
        """Whether the peer may have more values wait for it; one that may not is no peer any more."""
        nbytes, runs = peer.outbox.queued_bytes, peer.outbox.queued_runs
        if nbytes <= peer.job.most_queued + BATCH_BYTES and runs < MAX_QUEUED_RUNS:
            return True
        told = f"Pull.request: {nbytes} bytes of values in {runs} runs wait to be fetched already"
        self._links.refuse(peer.identity, ProtocolError(told))
        peer.close()
        return False


# --- Frames of gradients, values and ids, as they come on a shard's connections ---------------------------------------


class Pushes:
    """Takes frames in; what may be merged then is left to `work`."""

    def __init__(self, links: Links, work: Merger) -> None:
        self._links = links
        self._work = work

    def take(self, peer: Peer, push: Push, payload: memoryview) -> None:
        """Takes in a frame, run by run: each is refused for itself. Raises ProtocolError for what nobody may say."""
        links, shard, arena = self._links, peer.job.shard, None
        links.counts.frames_received += 1
        runs: Iterable[Run]
        if push.at is not None or push.place:
            arena = links.arenas.hold(peer, push.frame)
            if arena is None:
                self._not_brought(peer, push)
                return
            peer.shared.received += sum(push.nbytes) - payload.nbytes
        if push.at is not None and arena is not None:
            payload = memoryview(placed(arena, (push.at, push.at + payload_bytes(push))))  # type: ignore[arg-type]
            # What is checked, and then taken in, are the same bytes.
            runs = [own_run(shard, run) for run in runs_of(push, payload, arena)]
        else:
            if payload.readonly and not _stays(shard, push, payload):
                payload = writable(payload)
            runs = runs_of(push, payload, arena)
        for number, run in enumerate(runs):
            try:
                self._work.take(take_run(shard, peer, run))
            except PushRefusedError as error:
                self._refuse(peer, push, number, str(error))
            if peer.is_lost:  # By an answer.
                return
        peer.acknowledge.append(push.frame)
        links.due(peer)
        if push.payload_kind[-1] == PayloadKind.GRADIENT:
            peer.job.stragglers.came(peer.slot, push.step[-1], peer.heard)

    def _not_brought(self, peer: Peer, push: Push) -> None:
        """Nothing of a frame is taken in whose bytes are in an arena that the client has not brought."""
        for number in range(len(push.nbytes)):
            self._refuse(peer, push, number, "its bytes are in an arena that was not brought")
        peer.acknowledge.append(push.frame)
        peer.released.append(push.frame)
        self._links.due(peer)

    def _refuse(self, peer: Peer, push: Push, number: int, reason: str) -> None:
        self._links.counts.refused += 1
        self._links.say(peer.identity, PushRefused(push.frame, number, reason[:2048]))


def _stays(shard: JobShard, push: Push, payload: memoryview) -> bool:
    """Whether a payload is added up as it lies in its message: all of it are gradients, as they are."""
    if payload.nbytes < STAYS_BYTES or any(push.payload_kind) or any(push.chunks):
        return False
    found = map(shard.buckets.get, {*push.bucket})
    return all(bucket is not None and bucket.pushed is None for bucket in found)


def writable(payload: memoryview) -> memoryview:
    """A message's payload, copied: the memory is the shard's."""
    own = np.frombuffer(payload, np.uint8).copy()
    return memoryview(own)  # type: ignore[arg-type]  # an array is a buffer
