"""A shard behind its sockets: one thread that receives, works and answers."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import numpy as np
import zmq

from weft.agent.trace import TraceRecorder
from weft.api.store import gradient_key
from weft.api.trace import SpanKind
from weft_kvstore.arrays import Buffer
from weft_kvstore.bucket.update import Task
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption.curve_authenticator import CurveAuthenticator
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import OtherThread
from weft_kvstore.process import Wakeup, resident_bytes
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.same_host.handover import ArenaListener
from weft_kvstore.same_host.memory import ArenaError, LentMemory
from weft_kvstore.serving.connections import Strangers
from weft_kvstore.settings import MAX_FRAME_BYTES, STALL_S, LinkSettings, endpoints_of
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import Job
from weft_kvstore.shard.snapshot import Captures, Held, MissedError, restore
from weft_kvstore.snapshot_files import Snapshot
from weft_kvstore.statistics import ApplyStatistics, JobStatistics, ShardStatistics, StageTimes, depths
from weft_kvstore.wire.codec import MAX_HEADER_BYTES

# --- A shard's socket: a ROUTER that clients connect to ---------------------------------------------------------------


QUEUED_MESSAGES: Final = 1000
"""Messages that ZeroMQ holds for one peer, either way; a peer that does not read is dropped."""

COPIED_BYTES: Final = 1 << 19
"""A shorter part of a message is copied: for one that is not, a thread is woken once it has left. It takes as long."""

SHORT_BYTES: Final = 1 << 15
"""A shorter part of a message that comes is copied sooner than it is kept where it lies."""

HANDSHAKE_MS: Final = 5000
"""A connection that has not ended its handshake by then is closed: silent ones would use up the file descriptors."""

SPARE: Final = 8
"""Connections of clients beyond twice those that a slot has now: those that broke, and are not known to be closed."""

_GONE: Final = frozenset({zmq.EHOSTUNREACH, zmq.EAGAIN})
"""The connection is gone, or the peer does not read. It may come again by a Hello."""

# Plain numbers: arithmetic on pyzmq's flags takes longer than what it says.
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)
_EVENTS = int(zmq.EVENTS)


class Router:
    """Bound to `bind` when made, of a range of ports to the first free one; `endpoint` is where. Used by one thread at
    a time, and polled as `socket`.
    `authenticator`: who is let in, where links are encrypted. Raises StoreError where it cannot be bound."""

    def __init__(self, bind: str, authenticator: CurveAuthenticator | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = QUEUED_MESSAGES
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.handshake_ivl = HANDSHAKE_MS
        self._strangers: Strangers | None = None
        self._authenticator = authenticator
        try:
            if authenticator is not None:
                authenticator.apply_to(self._context, self.socket)
            self._bind(bind)
        except (
            zmq.ZMQError,
            RuntimeError,
            ValueError,
        ) as error:
            # RuntimeError: the authenticator's thread does not start.
            self.close()
            raise StoreError(f"cannot bind {bind}: {error}") from error
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.bytes_sent = 0
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        """Without what pyzmq's own adds for other kinds of sockets: a third of its time."""
        self._last: zmq.Frame | None = None
        self._strangers = Strangers(self.socket)

    def _bind(self, bind: str) -> None:
        *endpoints, last = endpoints_of(bind)
        for endpoint in endpoints:
            try:
                self.socket.bind(endpoint)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
            else:
                return
        self.socket.bind(last)

    @property
    def is_readable(self) -> bool:
        """Whether a message has come."""
        return bool(self.socket.get(_EVENTS) & _READABLE)  # type: ignore[operator]  # a poll makes a poller each time

    def receive(self) -> tuple[bytes, Sequence[Buffer]]:
        """A message that has come: the identity of its connection, and its parts, which nobody else has. Short ones
        are copied: where a message lies whatever came with it is kept too, and arrays in it are not aligned."""
        identity = self.socket.recv(_NOW)
        self._last = frame = self.socket.recv(_NOW, copy=False)
        parts: list[Buffer] = [frame.bytes]
        while frame.more:  # The parts of a message come together or not at all.
            frame = self.socket.recv(_NOW, copy=False)
            parts.append(frame.bytes if len(frame) < SHORT_BYTES else frame.buffer)
        return identity, parts

    def welcome(self, most: int) -> None:
        """The message received last came from a client, of which the newest `most` stay. Others are closed in time."""
        if self._strangers is not None and self._last is not None:
            self._strangers.welcome(self._last, most)

    def send(self, identity: bytes, parts: Sequence[Buffer]) -> bool:
        """Sends a message; False where its connection is gone, or does not read. Never waits."""
        last = len(parts) - 1
        try:
            self._send(identity, _MORE)
            for number, part in enumerate(parts):
                size = len(part)
                self._send(part, _NOW if number == last else _MORE, size < COPIED_BYTES)
                self.bytes_sent += size
        except zmq.ZMQError as error:
            if error.errno not in _GONE:
                raise
            return False
        return True

    @property
    def is_closed(self) -> bool:
        return self._context.closed

    def close(self) -> None:
        """Closes it; what was not sent is dropped."""
        if self._strangers is not None:
            self._strangers.close()
        self.socket.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()


# --- Threads that help the shard's own with updates: what can be cut is computed side by side -------------------------


@dataclass(slots=True)
class _Counts:
    name: str
    pieces: int = 0
    busy_s: float = 0.0


class ApplyPool:
    """`threads` beside the caller's own; with none, everything is computed by the caller. NumPy lets go of the
    interpreter while it computes, so pieces of an update do run at the same time."""

    def __init__(self, threads: int = 0) -> None:
        """Raises ValueError for a number below 0."""
        if threads < 0:
            raise ValueError(f"apply threads: at least 0, not {threads}")
        self.lanes = threads + 1
        self._own, *others = self._counts = [_Counts("socket"), *(_Counts(f"apply-{n}") for n in range(threads))]
        self._here = threading.local()

        def begin() -> None:
            self._here.counts = others.pop()

        self._helpers = ThreadPoolExecutor(threads, "weft-apply", begin) if threads else None

    def run(self, tasks: Sequence[Task]) -> None:
        """Carries out all of them, in any order, and returns when all have ended. Raises what one of them raised; where
        nobody helps, the others are not begun then."""
        if self._helpers is None or len(tasks) == 1:
            started, counts = time.perf_counter(), self._own
            for number, task in enumerate(tasks, counts.pieces + 1):
                counts.pieces = number
                task()
            counts.busy_s += time.perf_counter() - started
            return
        left = deque(tasks)
        helping = [self._helpers.submit(self._help, left) for _ in range(min(self.lanes, len(tasks)) - 1)]
        try:
            self._carry_out(left, self._own)
        finally:
            begun = [one for one in helping if not one.cancel()]
            wait(begun)
        for one in begun:
            one.result()

    def statistics(self) -> Iterator[ApplyStatistics]:
        """Of the caller's thread and of each other one, at this moment."""
        for one in self._counts:
            yield ApplyStatistics(one.name, one.pieces, one.busy_s)

    def close(self) -> None:
        """Ends the threads. Idempotent."""
        if self._helpers is not None:
            self._helpers.shutdown()

    def _help(self, left: deque[Task]) -> None:
        with np.errstate(all="ignore"):  # It is the thread's own; what overflows is the user's to see in the values.
            self._carry_out(left, self._here.counts)

    def _carry_out(self, left: deque[Task], counts: _Counts) -> None:
        while left:
            try:
                task = left.popleft()
            except IndexError:  # Another thread has taken the last one.
                return
            begun = time.perf_counter()
            try:
                task()
            finally:
                counts.pieces += 1
                counts.busy_s += time.perf_counter() - begun


# --- The shard's thread: it has the socket, and carries out what the core decides -------------------------------------


MESSAGES_A_ROUND: Final = 64
"""Messages read before slices are merged, so that a flood cannot starve the merging."""

RECEIVE_S: Final = 0.05
"""Seconds after which no further message is read in a round: what was read is answered first."""

_log = logging.getLogger("weft.shard")


class ShardServer:
    """A shard of one job. Bound when made, serving after `start`; `stop` is for good.

    One thread has the socket, and updates; `apply_threads` more help it with updates that can be cut. `tables`: where
    rows of tables lie; None: in memory. `authenticator`: links are encrypted, and open to whom it
    lets in. `trace` notes what is done in its steps; `traced` is called after the last of them, and has to be quick.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        settings: LinkSettings = LinkSettings(),  # noqa: B008  # frozen, so it can be shared
        apply_threads: int = 0,
        tables: TablePlace | None = None,
        authenticator: CurveAuthenticator | None = None,
        clock: Callable[[], float] = time.monotonic,
        trace: TraceRecorder | None = None,
        traced: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._tracing = None if trace is None else _Tracing(trace, traced)
        self._clock = clock
        self._pool = ApplyPool(apply_threads)
        self._tables = tables
        self._core = ShardCore(os.urandom(16), settings, let_go=self._let_go)
        self._core.work.clock = self._clock
        self._router = Router(bind, authenticator)
        self.endpoint = self._router.endpoint
        self._welcomed = 0
        self._stages = StageTimes()
        self._has_come = False
        """Whether the poll has said that a message has come, and it was not read."""
        self._waited = False
        """Whether what is to be sent waited for what had come meanwhile: an answer may go with it."""
        self._next_tick = clock()
        self._wakeup = Wakeup()
        self._listener = _listener() if settings.same_host else None
        self._core.arenas = self._listener
        self._asked: deque[Callable[[], None]] = deque()
        """What other threads want done on the shard's."""
        self._stopping = False
        self._opening = threading.Lock()
        """Held while a job is opened, and while none may be any more."""
        self.ended = threading.Event()
        """Set when it serves no more; `error` is what ended it, None after `stop`."""
        self.error: Exception | None = None
        self._captures = Captures(OtherThread(self._soon, lambda: self.ended.is_set() or self._core.job is None))
        self._thread = threading.Thread(target=self._run, name="weft-shard", daemon=True)

    def start(self) -> None:
        """Serves from now on. Idempotent; raises StoreError once it was stopped."""
        if self._stopping:
            raise StoreError(f"the shard at {self.endpoint} was stopped")
        if self._thread.ident is None:
            self._thread.start()

    def wake_at_end(self, stop: threading.Event) -> None:
        """Sets `stop` once it serves no more: a process whose sockets are gone is of no use."""
        self.ended.wait()
        stop.set()

    def open(
        self,
        description: StoreDescription,
        shard: int,
        *,
        snapshot: Snapshot | None = None,
        keeps_previous: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Makes the first values of this shard's slices, or reads those of a `snapshot`, on the calling thread, and
        serves the job from then on. `keeps_previous`: see `JobShard`.

        Raises DescriptionError, ValueError for an initializer that there is not or a shard number that the description
        lacks, StoreError where it has a job or was stopped, SnapshotError, and OpenStoppedError soon after `stopped`
        says so.
        """
        check_description(description)
        if not 0 <= shard < len(description.shards):
            raise ValueError(f"shard {shard}: job {description.job!r} has {len(description.shards)}")
        made = JobShard(
            description,
            shard,
            computing=self._pool,
            tables=self._tables,
            keeps_previous=keeps_previous,
            lend=_lent if self._listener is not None else lambda _: None,
            stopped=stopped,
        )
        try:
            if snapshot is not None:
                restore(made, snapshot)
            with self._opening:
                if self._stopping:
                    raise StoreError(f"the shard at {self.endpoint} was stopped")
                self._core.open(made)
        except BaseException:
            made.close()
            raise

    def capture(self, step: int, told: Callable[[Held | MissedError], None], *, since: int | None = None) -> None:
        """Captures what the job is at version `step`, as its slices reach it. `told` is called on the shard's thread,
        and has to be quick; what it is given is to be released, once nobody reads it. May be called on any thread once
        the job is open; a capture that is not complete is dropped. Keys that workers update are theirs to capture.
        `since`: of tables only what has changed since the capture at that step, if that is known."""

        def begin() -> None:
            if self._core.job is not None:
                shard = self._core.job.shard
                keys = {key.key for key in shard.description.keys}
                without = {key for key in keys if gradient_key(key) in keys}
                self._captures.begin(shard, step, told, without=without, since=since)

        self._soon(begin)

    def _soon(self, work: Callable[[], None]) -> None:
        """Has the shard's thread do it between two pieces of its work."""
        self._asked.append(work)
        self._wakeup.wake()

    def stop(self) -> None:
        """Closes everything. Idempotent."""
        self._stopping = True
        if self._thread.is_alive():
            self._wakeup.wake()
            self._thread.join()
        elif not self._router.is_closed:
            self._shut()

    def __enter__(self) -> ShardServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def statistics(self) -> ShardStatistics:
        """Counts of this moment; they may move while they are read."""
        core, peers = self._core, list(self._core.peers.values())
        counts, job, listener = core.counts, core.job, self._listener
        return ShardStatistics(
            bytes_sent=self._router.bytes_sent,
            bytes_received=counts.bytes_received,
            shared_bytes_sent=counts.shared.sent,
            shared_bytes_received=counts.shared.received,
            frames_sent=counts.frames_sent,
            frames_received=counts.frames_received,
            malformed=counts.malformed,
            refused=counts.refused,
            unknown_links=counts.unknown_links,
            jobs=0 if job is None else 1,
            links=len(peers),
            work_slices=len(core.work.queue),
            queued_bytes=sum(peer.outbox.queued_bytes for peer in peers),
            in_flight_bytes=sum(peer.outbox.in_flight_bytes for peer in peers),
            waiting_pulls=sum(len(peer.pulls) for peer in peers),
            waiting_sets=0 if job is None else job.shard.waiting_sets,
            apply_threads=tuple(self._pool.statistics()),
            arenas=listener.arenas if listener is not None else 0,
            arena_refusals=listener.refused if listener is not None else 0,
            stages=self._stages.told(),
            queues=depths(core.work.waiting(), [one for peer in peers for one in peer.outbox.waiting()]),
            per_job=() if job is None else (self._of_job(job),),
        )

    def _of_job(self, job: Job) -> JobStatistics:
        counts = self._core.counts
        slot, seconds = job.stragglers.waits(self._clock()) or (None, 0.0)
        return JobStatistics(
            job=job.name,
            term=job.shard.description.term,
            process=os.getpid(),
            memory_bytes=resident_bytes(),
            rows=sum(table.touched for table in job.shard.tables.values()),
            links=len(job.links),
            bytes_received=counts.bytes_received,
            bytes_sent=self._router.bytes_sent,
            shared_bytes_received=counts.shared.received,
            shared_bytes_sent=counts.shared.sent,
            waited_slot=slot,
            waited_s=seconds,
        )

    def _run(self) -> None:
        poller, socket = zmq.Poller(), self._router.socket
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        listener = self._listener
        if listener is not None:
            poller.register(listener.fileno(), zmq.POLLIN)
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                while not self._stopping:
                    if not self._round():
                        continue
                    idle = self._clock()
                    events = poller.poll(max(math.ceil((self._next_tick - idle) * 1000), 0))
                    self._stages.idle += self._clock() - idle
                    for one, _ in events:
                        if one is socket:
                            self._has_come = True
                        elif listener is not None and one == listener.fileno():
                            listener.receive(self._clock())
                            self._core.look_at_arenas()
                        else:
                            self._wakeup.clear()
        except Exception as error:  # noqa: BLE001  # the thread's outermost frame: whoever runs the shard must hear of it
            _log.exception("the shard at %s has failed", self.endpoint)
            self.error = error
        finally:
            self._stopping = True
            self._shut()
            self.ended.set()

    def _round(self) -> bool:
        """Reads what came, merges the most urgent slice, sends; looks at the socket again after each slice, or where a
        flood has come once it has merged for as long as it has read: else more would come than is ever merged. Whether
        there is nothing left to do before something comes."""
        core, work, looked = self._core, self._core.work, self._clock()
        while self._asked:
            self._asked.popleft()()
        is_drained = self._receive(looked)
        begun = now = self._clock()
        if work.queue:
            is_drained = False
            work.work_once()
            now = self._clock()
            while now - begun < begun - looked and work.work_once():
                now = self._clock()
            self._stages.add(work.stage, now - begun)
            if self._tracing is not None:
                self._tracing.worked(core, work.stage, now - begun)
        if now >= self._next_tick:
            self._tick(now)
        links = core.links
        if core.wants_flush():
            if not is_drained and not self._waited and self._router.is_readable:
                self._waited = True
                return False
            core.flush(now)
        self._waited = False
        if links.outgoing:
            filled, to = self._clock(), links.outgoing
            links.outgoing = []
            for identity, parts in to:
                if not self._router.send(identity, parts):
                    core.links.lose(identity)
            sent = self._clock()
            self._stages.answer += filled - now
            self._stages.send += sent - filled
            if self._tracing is not None and not self._tracing.sent(core, to, sent - now):
                self._tracing = None
        return not work.queue and not links.waiting and not links.arenas.gone and not links.outgoing

    def _tick(self, now: float) -> None:
        late_s = now - self._next_tick
        self._next_tick = now + self._settings.ping_s / 2
        if late_s > STALL_S:
            self._core.after_stall(late_s, now)
        self._core.tick(now)
        if self._listener is not None:
            self._listener.tick(now)
            self._core.look_at_arenas()

    def _let_go(self) -> None:
        """Bytes of an arena are read no more; whoever waits for them is told in the next round."""
        if threading.current_thread() is not self._thread:
            self._wakeup.wake()

    def _receive(self, begun: float) -> bool:
        """Reads what has come, of a flood some of it. Whether nothing is left."""
        core, router, stages, clock = self._core, self._router, self._stages, self._clock
        until = begun + RECEIVE_S
        for _ in range(MESSAGES_A_ROUND):
            if not self._has_come and not router.is_readable:
                return True
            self._has_come = False
            identity, parts = router.receive()
            came = clock()
            try:
                core.receive(identity, parts, came)
            except Exception:  # noqa: BLE001  # what fails ends its connection, not the others' service
                _log.exception("a message of %s failed; its connection is dropped", identity.hex())
                core.links.lose(identity)
            if core.counts.welcomed != self._welcomed:
                self._welcomed = core.counts.welcomed
                router.welcome(2 * len(core.peers) + SPARE)
            done = clock()
            merged, core.work.at_once_s = core.work.at_once_s, 0.0
            if self._tracing is not None:
                self._tracing.received(core, identity, done - begun - merged)
                if merged:
                    self._tracing.worked(core, "merge", merged)
            stages.receive += came - begun
            stages.decode += done - came - merged
            stages.merge += merged
            if done > until:
                return False
            begun = done
        return False

    def _shut(self) -> None:
        with self._opening:
            self._stopping = True
        self._router.close()
        for identity in list(self._core.peers):
            self._core.links.lose(identity)
        if self._listener is not None:
            self._listener.close()
        self._wakeup.close()
        self._pool.close()
        if self._core.job is not None:
            self._core.job.shard.close()


class _Tracing:
    """Notes the shard's work in the traced steps. Seconds are how long what ends now has taken."""

    def __init__(self, trace: TraceRecorder, traced: Callable[[], None]) -> None:
        self._trace = trace
        self._traced = traced

    def received(self, core: ShardCore, identity: bytes, seconds: float) -> None:
        peer = core.peers.get(identity)
        if peer is not None:
            self._add(core, SpanKind.RECEIVE, f"message of slot {peer.slot}", seconds, peer.slot)

    def worked(self, core: ShardCore, stage: str, seconds: float) -> None:
        self._add(core, SpanKind.MERGE if stage == "merge" else SpanKind.ANSWER, stage, seconds)

    def sent(self, core: ShardCore, to: Sequence[tuple[bytes, object]], seconds: float) -> bool:
        """Whether there is more to note."""
        for identity, _ in to:
            peer = core.peers.get(identity)
            if peer is not None:
                self._add(core, SpanKind.ANSWER, f"message to slot {peer.slot}", seconds, peer.slot)
        if self._step(core) <= self._trace.last:
            return True
        self._traced()
        return False

    def _add(self, core: ShardCore, kind: SpanKind, name: str, seconds: float, slot: int = -1) -> None:
        step = self._step(core)
        if self._trace.covers(step):
            self._trace.add(kind, name, step, self._trace.now() - round(seconds * 1e9), slot)

    @staticmethod
    def _step(core: ShardCore) -> int:
        """The newest that something has come of, from 1."""
        return 0 if core.job is None else core.job.stragglers.newest + 1


def _lent(nbytes: int) -> LentMemory | None:
    """Memory that clients of this host may read; None where there is none to be had."""
    try:
        return LentMemory(nbytes)
    except ArenaError as error:
        _log.info("values are copied for clients of this host: %s", error)
        return None


def _listener() -> ArenaListener | None:
    """Where clients of this host bring their arenas; None where the system has no such thing."""
    try:
        return ArenaListener()
    except ArenaError as error:
        _log.info("no shared memory with clients of this host: %s", error)
        return None
