"""All that a shard decides: messages and time in, messages out. Pure: no sockets, clocks or threads.

A connection is known by the identity that the socket gives it, and means nothing before its Hello. `outgoing` collects
what is to be sent; `flush` adds acknowledgements and frames, as late as possible, so that what is urgent overtakes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from weft_kvstore.arrays import Buffer
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.steps import JobFailedError, PullWait
from weft_kvstore.errors import PushRefusedError, StoreError
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import BATCH_BYTES, BATCH_UNITS, Merger
from weft_kvstore.shard.peer import MAX_OPEN_MEASURES, MAX_OPEN_PULLS, Peer
from weft_kvstore.wire.codec import ProtocolError, PushSegment, buffers_at, decode_request, push_segments
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    NO_REQUEST,
    Acknowledge,
    Barrier,
    Because,
    Bye,
    Cancel,
    Commit,
    FailureCode,
    Hello,
    Hyper,
    Measure,
    Measured,
    PayloadKind,
    Ping,
    Pong,
    Pull,
    Push,
    PushRefused,
    RefusalCode,
    Refused,
    Request,
    Why,
    chunks_in,
    nbytes_of,
)

_log = logging.getLogger("weft.shard")

OpenedPull: TypeAlias = tuple[PullWait, list[tuple[Bucket, int, int]]]
"""A pull, and the slices that it asks for, by buckets: from the first to before the second."""


class ShardCore:
    """A shard's one job, once it is open, and every connection. `boot` is 16 bytes drawn when the process starts."""

    def __init__(self, boot: bytes, settings: LinkSettings) -> None:
        self.links = Links(settings, boot)
        self.peers = self.links.peers
        self.counts = self.links.counts
        self.work = Merger(self.links, priorities=settings.priorities)
        self.arrived: Callable[[int, int, float], None] = lambda slot, step, now: None
        """Called with (slot, step, time) when gradients of a step have arrived, or the word that there are none."""

    @property
    def job(self) -> JobShard | None:
        """None before it is open, and once it was closed or has failed."""
        return self.links.job

    def open(self, job: JobShard) -> None:
        """Serves a job from now on. Raises StoreError where it has one. May be called on any thread."""
        if self.job is not None:
            name = self.job.description.job
            raise StoreError(f"this shard serves job {name!r} already; each job has a process of its own")
        if job.gate is not None:
            job.gate.on_measured = partial(self._answer_measures, job.gate)
        self.links.open(job)

    def fail(self, error: Exception) -> None:
        """Ends the job because of an error, wherever that was raised: otherwise it could go on with wrong sums, or wait
        for ever."""
        what, is_told = type(error).__name__, isinstance(error, JobFailedError)
        reason = str(error) if is_told else f"{'no memory' if what == 'MemoryError' else what}: {error}"
        if self.job is not None:
            name, shard, info = self.job.description.job, self.job.shard, None if is_told else error
            _log.error("job %r has failed on shard %d: %s", name, shard, reason, exc_info=info)
        self.close(reason)

    def close(self, reason: str) -> None:
        """Drops the job, for a reason that its clients are told. Idempotent."""
        job = self.links.job
        if job is not None:
            self.work.queue.clear()
            self.links.close_job(reason)
            job.close()

    def receive(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """Handles one message. Malformed bytes, and messages on a connection without a Hello, are counted and answered
        with Refused. A message that cannot be decoded for another reason, such as lack of memory, costs its connection.
        An error while a message is carried out is raised, as it may be by all methods: then the job has to `fail`."""
        self.counts["received_bytes"] += sum(map(len, parts))
        message: Request | None = None
        try:
            message, payload, number = decode_request(parts)
            if isinstance(message, Hello):
                self.links.hello(identity, message, number, now)
                return
            peer = self.peers.get(identity)
            if peer is None:
                self.counts["unknown_link_messages"] += 1
                self.links.say(identity, Refused(RefusalCode.UNKNOWN_LINK, "no Hello came on this connection"))
                return
            peer.heard = now
            if number == peer.received + 1:
                peer.received = number
            elif number:  # 0 is not counted.
                if number > peer.received:  # Nothing would be in order any more: the client is to begin a new one.
                    reason = f"message {peer.received + 1} of this connection did not come before message {number}"
                    _log.info("slot %d: %s; it has to begin a new one", peer.slot, reason)
                    self.links.disconnect(identity)
                    self.links.say(identity, Refused(RefusalCode.UNKNOWN_LINK, reason))
                return
            if isinstance(message, Push):
                self._push(peer, message, payload, now)
            elif isinstance(message, Acknowledge):
                peer.arrived(message.frame, now)
                if peer.outbox.queued_slices:
                    self.links.waiting[peer] = None
            else:
                self._handle(peer, message, now)
        except ProtocolError as error:  # Earlier segments may have to be copied.
            self.links.refuse(identity, error)
        except Exception:
            if message is not None:
                raise
            _log.exception("a message of %s could not be read; its connection is dropped", identity.hex())
            self.links.disconnect(identity)
            self.links.say(identity, Refused(RefusalCode.UNKNOWN_LINK, "a message of this connection was not read"))

    def _handle(self, peer: Peer, message: Request, now: float) -> None:
        match message:
            case Pull():
                self._answer(self._opened(peer, message), peer.shard)
            case Barrier() | Measure() | Commit() | Hyper():
                try:
                    self._declare(peer, message, now)
                except PushRefusedError as error:
                    self.links.fail(peer, message.request, FailureCode.REFUSED, str(error))
            case Cancel():
                peer.cancel(*message.request)
                if NO_REQUEST in message.request:  # The client has repeated all requests that it still waits for.
                    peer.cancel(*peer.unrepeated)
                    peer.unrepeated = set()
                    for failed in peer.failed.values():
                        self.links.say(peer.identity, failed)
            case Why():
                self._why(peer, message)
            case Ping():
                self.links.say(peer.identity, Pong())
            case Bye():
                self.links.close(peer)

    def _why(self, peer: Peer, why: Why) -> None:
        """Answers what each of these requests waits for, if it is open."""
        for request in why.request:
            if (wait := peer.pulls.get(request)) is not None:
                reason, _ = peer.shard.waits_for(wait)
            elif request in peer.measures:
                reason, _ = peer.shard.step_waits_for(peer.measures[request])
            else:
                continue
            self.links.say(peer.identity, Because(request, reason[:2048]))

    # --- Frames of gradients, values and ids

    def _push(self, peer: Peer, push: Push, payload: memoryview, now: float) -> None:
        """Handles a frame, segment by segment. A segment that contradicts earlier ones is refused by itself. Raises
        ProtocolError for what no client may send: all segments are checked for that before the first is stored."""
        peer.arrived(push.acknowledge, now)
        opened = () if push.pull is None else self._opened(peer, push.pull)  # Its ids may be in this frame.
        self.counts["received_frames"] += 1
        shard, work = peer.shard, self.work
        segments = self._shared_segments(peer, push) if push.at else push_segments(push, [payload])
        for segment in segments:
            found = shard.all_buckets.get(segment.bucket)
            if found is None:
                raise ProtocolError(f"bucket: {segment.bucket} has nothing on shard {shard.shard}")
            found.check_segment(segment)
        if opened and any(map(chunks_in, push.segments)):
            self._answer(opened, shard)
            opened = ()
        newest = -1
        for number, segment in enumerate(segments):
            try:
                kind = segment.payload_kind
                if kind == PayloadKind.GRADIENT and not segment.chunks:
                    bucket = shard.buckets[segment.bucket]
                    for first, stop in bucket.push(peer.slot, segment.step, bucket.segments_of(segment)):
                        work.merge(bucket, first, stop)
                elif kind in {PayloadKind.GRADIENT, PayloadKind.IDS}:
                    work.rows(peer, segment)
                else:
                    work.set(shard, peer.slot, segment, (peer.hello.process, segment.request))
                newest = segment.step if kind == PayloadKind.GRADIENT else newest
            except PushRefusedError as error:
                self._refuse(peer, push, number, str(error))
        peer.acknowledge.append(push.frame)
        self.links.waiting[peer] = None
        if push.at:
            self.links.update_in_place(peer, push.frame)
        if newest >= 0:
            self.arrived(peer.slot, newest, now)
        if opened:  # Last: what has been merged by now is answered at once.
            self._answer(opened, shard)

    def _shared_segments(self, peer: Peer, push: Push) -> list[PushSegment]:
        """The segments of a frame whose bytes are in the client's memory; none where the client has not shared that.
        They are copied unless the shard only computes with them: the client may change their bytes between two
        reads."""
        shard, memory = peer.shard, self.links.memory_of(peer)
        if memory is None:
            for number in range(len(push.segments)):
                self._refuse(peer, push, number, "its bytes are in memory that was not brought")
            return []
        self.counts["shared_memory_received_bytes"] += sum(map(nbytes_of, push.segments))
        segments = push_segments(push, buffers_at(push, memory), shared=True)
        found = [segment if shard.reads_in_place(segment) else segment.copied() for segment in segments]
        # Known before any waits there: whatever ends the frame, they are copied before the client may write.
        self.links.in_place[peer, push.frame] = [one for one in found if one.shared]
        return found

    def _refuse(self, peer: Peer, push: Push, number: int, reason: str) -> None:
        self.counts["refused_requests"] += 1
        self.links.say(peer.identity, PushRefused(push.frame, number, reason[:2048]))

    # --- Pulls, which the merger answers

    def _opened(self, peer: Peer, pull: Pull) -> list[OpenedPull]:
        """Opens the pulls of a message, one for each request. Raises ProtocolError."""
        shard, buckets, opened, entries = peer.shard, peer.shard.buckets, list[OpenedPull](), 0
        for request, version, state, reading, compressed, ranges in pull.asks:
            entries += len(ranges)
            if entries > MAX_ENTRIES:
                raise ProtocolError(f"Pull.asks: {entries} ranges, more than {MAX_ENTRIES}")
            if request in peer.unrepeated:  # Its answers that the last connection lost are sent again anyway.
                peer.unrepeated.remove(request)
                continue
            if request in peer.pulls:
                raise ProtocolError(f"Pull.request: {request} is open already")
            wait = PullWait(
                peer,
                request,
                version,
                slot=peer.slot,
                state=state,
                reading=reading,
                compressed=compressed,
                priority=pull.priority,
                entries=len(ranges),
            )
            peer.pulls[request] = wait
            peer.open_entries += len(ranges)
            if peer.open_entries > MAX_OPEN_PULLS:
                detail = f"{MAX_OPEN_PULLS} ranges of slices are asked for already; wait for some of them"
                self.links.fail(peer, wait.request, FailureCode.REFUSED, detail)
                continue
            asked: list[tuple[Bucket, int, int]] = []
            for number, first, count, chunks in ranges:
                bucket = buckets.get(number)
                if bucket is None or chunks or not 0 < count <= bucket.count - first:
                    shard.ask(wait, number, first, count, chunks)  # A table, or what is wrong.
                else:
                    asked.append((bucket, first, first + count))
            if asked:
                opened.append((wait, asked))
        return opened

    def _answer(self, opened: Sequence[OpenedPull], shard: JobShard) -> None:
        """Answers pulls as far as it can be now."""
        for wait, asked in opened:
            for bucket, first, stop in asked:
                found = [] if wait.unanswered else bucket.answerable(wait, first, stop)
                if not found or found[0][:2] != (first, stop):
                    wait.want(bucket.spec.number, first, stop)  # Nor are the others, most probably.
                    continue
                self.work.answer_range(wait, bucket, *found[0])
                if wait.dropped:  # It has asked for too much.
                    break
            if wait.unanswered:
                self.work.ask(wait, shard)
            else:
                wait.peer.forget(wait)

    # --- Whole steps: barriers, what they amount to, and commits

    def _declare(self, peer: Peer, message: Barrier | Measure | Commit | Hyper, now: float) -> None:
        """Carries out what a slot says of a step. Raises PushRefusedError, and ProtocolError."""
        shard = peer.shard
        match message:
            case Barrier():  # It has nothing for some keys.
                self.work.push_nothing(shard, peer.slot, message.step, message.nothing)
                if message.nothing:  # Else the step is not known to be one that the slot can be at.
                    self.arrived(peer.slot, message.step, now)
            case Measure():  # Its step is whole, and it asks what the step amounts to.
                if message.request in peer.measures or len(peer.measures) >= MAX_OPEN_MEASURES:
                    detail = f"{message.request} is open already, or {MAX_OPEN_MEASURES} are"
                    raise ProtocolError(f"Measure.request: {detail}")
                gate = shard.step_gate("Measure")
                peer.measures[message.request] = message.step
                gate.arrive(peer.slot, message.step)
                self._answer_measures(gate, message.step)
                return
            case Commit():  # It says what all shards measured.
                if not message.norm >= 0.0 and (message.finite or message.norm < 0.0):
                    raise ProtocolError(f"Commit.norm: {message.norm} is none, finite {message.finite}")
                if shard.step_gate("Commit").commit(message.step, norm=message.norm, finite=message.finite):
                    for bucket in shard.all_buckets.values():
                        if bucket.spec.slots:  # It may have waited for that.
                            self.work.merge(bucket, 0, bucket.count)
            case Hyper():  # It changes hyper-parameters. What a client repeats is behind later changes.
                if message.request > peer.changed:
                    shard.change_hyper(peer.slot, message)
                    peer.changed = message.request
        peer.done.append(message.request)
        self.links.waiting[peer] = None

    def _answer_measures(self, gate: StepGate, step: int) -> None:
        """Answers who has asked of a step, if it is measured."""
        found = gate.measured(step)
        if found is None or (scale := found.loss_scale) is None:
            return
        for peer in self.peers.values():
            for request in [one for one, of in peer.measures.items() if of == step]:
                del peer.measures[request]
                measured = Measured(request, found.squares, found.finite, scale.scale, scale.good)
                self.links.say(peer.identity, measured)

    def wants_flush(self) -> bool:
        """Whether `flush` is due: nothing is left to merge, enough was merged, or a link that has values is idle."""
        links = self.links
        if links.in_place and self.work.has_merged:
            self.work.has_merged = False
            for peer, frame in list(links.in_place):
                links.update_in_place(peer, frame)
        if not links.waiting:
            return False
        work = self.work
        if not work.queue or work.batch_count >= BATCH_UNITS or work.batch_bytes >= BATCH_BYTES:
            return True
        return any(peer.outbox.queued_slices and not peer.outbox.in_flight_bytes for peer in links.waiting)

    def flush(self, now: float) -> None:
        """Puts acknowledgements and as many frames as credit allows into `outgoing`."""
        self.work.batch_count = self.work.batch_bytes = 0
        waiting, self.links.waiting = self.links.waiting, {}
        for peer in waiting:
            peer.write(self.links.outgoing, now)

    def tick(self, now: float, stalled_s: float = 0.0) -> None:
        """Loses silent connections, and fails what waits for absent slots. To be called every ping or so. `stalled_s`:
        how long this process has stood still, and received nothing."""
        self.links.tick(now, stalled_s)
