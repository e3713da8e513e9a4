"""A shard behind its socket: one thread that receives, works and answers."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, TypeVar, get_args

import numpy as np
import zmq

from weft.agent.trace import TraceRecorder
from weft.api.store import gradient_key
from weft.api.trace import SpanKind
from weft_kvstore.description.check import NO_SHARDS, DescriptionError, check_description
from weft_kvstore.description.records import Mode, StoreDescription
from weft_kvstore.encryption import CurveAuthenticator
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import OtherThread
from weft_kvstore.process import Wakeup, resident_bytes
from weft_kvstore.rows.growing_array import TablePlace
from weft_kvstore.same_host.handover import ArenaListener
from weft_kvstore.same_host.memory import ArenaError, shard_memory
from weft_kvstore.serving.connections import Router
from weft_kvstore.settings import STALL_S, LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.snapshot import Capture, Captured, MissedError, restore
from weft_kvstore.snapshot_files import Snapshot
from weft_kvstore.wire.messages import Pong

# --- Whom a job's steps wait for: from when a step's gradients came, slot by slot -------------------------------------
# Only where a step applies once all slots are in. A slot is in when it has sent the last of a step; of each step the
# slot that came last is the one that the others waited for, since the first of them was in.


OPEN_STEPS: Final = 4
"""Steps that may be open at once: slots are no further apart."""


class Stragglers:
    """`waited[slot]`: the seconds for which steps have waited for this slot, where it came last.
    `_arrived[step][slot]`: when the slot last sent something of the step, for steps that are not judged yet."""

    def __init__(self, slots: Iterable[int]) -> None:
        self._slots = frozenset(slots)
        self.waited: dict[int, float] = {}
        self.newest = -1
        """The newest step of which something has come; -1 before there is one."""
        self._arrived: dict[int, dict[int, float]] = {}
        self._judged = -1

    def arrived(self, slot: int, step: int, now: float) -> None:
        """Something of a step has come from a slot, so it was not done with the step before."""
        if slot not in self._slots:
            return
        self.newest = max(self.newest, step)
        if step <= self._judged or len(self._slots) == 1:
            return
        at = self._arrived.setdefault(step, {})
        at[slot] = now
        if step - 1 in self._arrived and len(at) == len(self._slots):
            self._judge(step - 1)
        while len(self._arrived) > OPEN_STEPS:
            self._judge(min(self._arrived))

    def waits(self, now: float) -> tuple[int, float] | None:
        """The slot that was waited for most so far, and the seconds; a wait that goes on counts. None if none was
        waited for."""
        waited = dict(self.waited)
        for at in list(self._arrived.values()):
            here = dict(at)
            for slot in self._slots - here.keys() if here else ():
                waited[slot] = waited.get(slot, 0.0) + max(now - min(here.values()), 0.0)
        return max(((slot, seconds) for slot, seconds in waited.items()), key=lambda one: one[1], default=None)

    def _judge(self, step: int) -> None:
        for one in sorted(self._arrived):
            if one > step:
                break
            at = self._arrived.pop(one)
            if len(at) > 1:
                last = max(at, key=at.__getitem__)
                self.waited[last] = self.waited.get(last, 0.0) + at[last] - min(at.values())
        self._judged = step


# --- The shard's thread: it has the socket, and carries out what the core decides -------------------------------------


MESSAGES_A_ROUND: Final = 64
"""Messages read before slices are merged, so that a flood cannot starve the merging."""

RECEIVE_S: Final = 0.05
"""Seconds after which no further message is read in a round: what was read is answered first."""

Stage = Literal["receive", "decode", "merge", "answer", "send", "idle"]
"""Where the thread's time goes. Receive: reading messages from the socket; decode: parsing them and taking gradients
in; merge: summing, and the rule; answer: reading rows and filling frames; send: handing frames to the socket; idle:
waiting for something to do."""

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

_SPANS: Final[Mapping[Stage, tuple[SpanKind, str]]] = {
    "decode": (SpanKind.RECEIVE, "message of slot"),
    "merge": (SpanKind.MERGE, "merge"),
    "answer": (SpanKind.ANSWER, "answer"),
    "send": (SpanKind.ANSWER, "message to slot"),
}
"""What a trace shows of a stage."""

_log = logging.getLogger("weft.shard")

T = TypeVar("T")


class ShardServer:
    """A shard of one job. Bound when made, serving after `start`; `stop` is for good.

    `tables`: where rows of tables lie; None: in memory. `authenticator`: links are encrypted, and open to whom it lets
    in. `trace` records the work of its steps; `traced` is called after the last of them, and has to be quick. `ended`
    is set when it serves no more.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        settings: LinkSettings = LinkSettings(),  # noqa: B008  # frozen, so it can be shared
        tables: TablePlace | None = None,
        authenticator: CurveAuthenticator | None = None,
        clock: Callable[[], float] = time.monotonic,
        trace: TraceRecorder | None = None,
        traced: Callable[[], None] = lambda: None,
        ended: threading.Event | None = None,
    ) -> None:
        self._settings = settings
        self._trace = trace
        self._traced = traced
        self._clock = clock
        self._tables = tables
        self._core = ShardCore(os.urandom(16), settings)
        self._core.work.clock = clock
        self._stragglers = Stragglers(())
        self._router = Router(bind, authenticator)
        self._core.links.welcomed = self._router.welcome
        self._core.links.forgotten = self._router.connections.forget
        self._router.connections.ended = self._core.links.ended
        self.endpoint = self._router.endpoint
        self._seconds: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self._has_come = False
        """Whether the poll has said that a message has come, which is not read yet."""
        self._waited = False
        """Whether sending was put off for a round, since more had come: its answers may go with what is to be sent."""
        self._next_tick = clock()
        self._wakeup = Wakeup()
        self._listener = _shared_memory(ArenaListener) if settings.same_host else None
        if self._listener is not None:
            self._core.links.listener, self._core.links.arenas = self._listener.name, self._listener.arenas
        self._calls: deque[Callable[[], None]] = deque()
        """Work of other threads for the shard's thread."""
        self._stopping = False
        self._opening = threading.Lock()
        """Held while a job is put in place, and while it is noted that none may be any more."""
        self.ended = ended or threading.Event()
        self.error: Exception | None = None
        """What ended it; None after `stop`."""
        self._here = OtherThread(self._soon, lambda: self.ended.is_set() or self._core.job is None)
        self._thread = threading.Thread(target=self._run, name="weft-shard", daemon=True)

    def start(self) -> None:
        """Serves from now on. Idempotent; raises StoreError once it was stopped."""
        if self._stopping:
            raise StoreError(f"the shard at {self.endpoint} was stopped")
        if self._thread.ident is None:
            self._thread.start()

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

        Raises DescriptionError, ValueError for an unknown initializer or a shard number that the description
        lacks, StoreError where it has a job or was stopped, SnapshotError, and OpenStoppedError soon after `stopped`
        says so.
        """
        check_description(description)
        if not description.shards:
            raise DescriptionError(NO_SHARDS)
        if not 0 <= shard < len(description.shards):
            raise ValueError(f"shard {shard}: job {description.job!r} has {len(description.shards)}")
        made = JobShard(
            description,
            shard,
            tables=self._tables,
            keeps_previous=keeps_previous,
            make_shared=lambda nbytes: None if self._listener is None else _shared_memory(lambda: shard_memory(nbytes)),
            stopped=stopped,
        )
        for bucket in made.buckets.values():
            bucket.update.values.source.wrap = partial(zmq.Frame, copy=False)
        try:
            if snapshot is not None:
                restore(made, snapshot)
            with self._opening:
                if self._stopping:
                    raise StoreError(f"the shard at {self.endpoint} was stopped")
                if self._core.job is None:  # Clients may push as soon as it is open.
                    if self._listener is not None:
                        self._listener.shared_memory = made.shared_memory
                    if description.mode is Mode.SYNC:
                        self._stragglers = Stragglers({slot for key in description.keys for slot in key.slots})
                        self._core.arrived = self._stragglers.arrived
                self._core.open(made)
        except BaseException:
            made.close()
            raise

    def capture(
        self, step: int, captured: Callable[[Captured | MissedError], None], *, since: int | None = None
    ) -> None:
        """Captures what the job is at version `step`, as its slices reach it. `captured` is called on the shard's
        thread, and has to be quick; what it is given is to be released, once nobody reads it. May be called on any
        thread once the job is open; a capture that is not complete is dropped. Keys that workers update are theirs to
        capture. `since`: of tables only what has changed since the capture at that step, if that is known."""

        def begin() -> None:
            if (shard := self._core.job) is not None:
                keys = {key.key for key in shard.description.keys}
                without = {key for key in keys if gradient_key(key) in keys}
                Capture(shard, step, captured, self._here, without=without, since=since)

        self._soon(begin)

    def _soon(self, work: Callable[[], None]) -> None:
        """Lets the shard's thread do it between two pieces of its work."""
        self._calls.append(work)
        self._wakeup.wake()

    def stop(self) -> None:
        """Closes everything. Idempotent."""
        is_closed, self._stopping = self._stopping, True
        if self._thread.is_alive():
            self._wakeup.wake()
            self._thread.join()
        elif not is_closed:
            self._close()

    def __enter__(self) -> ShardServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def statistics(self) -> dict[str, float]:
        """Its metrics (`serving.metrics`) at this moment; they may move while they are read."""
        core, peers, listener = self._core, list(self._core.peers.values()), self._listener
        job, counts = core.job, {**core.counts, "sent_bytes": self._router.bytes_sent}
        found: dict[str, float] = {
            **counts,
            "jobs": 0 if job is None else 1,
            "links": len(peers),
            "arenas": 0 if listener is None else len(listener.arenas),
            "refused_arenas": 0 if listener is None else listener.refused,
            "waiting_pulls": sum(len(peer.pulls) for peer in peers),
            "waiting_sets": 0 if job is None else job.waiting_sets,
            "work_queue_pieces": len(core.work.queue),
            "send_queue_bytes": sum(peer.outbox.queued_bytes for peer in peers),
            "in_flight_bytes": sum(peer.outbox.in_flight_bytes for peer in peers),
        }
        found |= {f"stage_seconds:{stage}": seconds for stage, seconds in self._seconds.items()}
        if job is not None:
            rows = sum(table.rows.count for table in job.tables.values())
            of_job = {"links": len(peers), "memory_bytes": resident_bytes(), "rows": rows}
            of_job |= {name: number for name, number in counts.items() if name.endswith("_bytes")}
            found |= {f"job_{name}:{job.description.job}": number for name, number in of_job.items()}
            if (waits := self._stragglers.waits(self._clock())) is not None:
                found[f"job_waited_seconds:{waits[0]}:{job.description.job}"] = waits[1]
        return found

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router.socket, zmq.POLLIN)
        for one in (self._wakeup, self._router.connections, self._listener):
            if one is not None:
                poller.register(one.fileno(), zmq.POLLIN)  # A number is polled in less time than an object.
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                while not self._stopping:
                    try:
                        self._serve(poller)
                    except Exception as error:
                        if self._core.job is None:
                            raise
                        self._core.fail(error)  # Its clients are told, and the shard goes on without it.
        except Exception as error:  # noqa: BLE001  # the thread's outermost frame: whoever runs the shard must hear of it
            _log.exception("the shard at %s has failed", self.endpoint)
            self.error = error
        finally:
            self._close()
            self.ended.set()

    def _serve(self, poller: zmq.Poller) -> None:
        """Until it is to stop."""
        socket, listener, connections = self._router.socket, self._listener, self._router.connections
        while not self._stopping:
            if not self._round():
                continue
            idle = self._clock()
            events = poller.poll(max(math.ceil((self._next_tick - idle) * 1000), 0))
            self._seconds["idle"] += self._clock() - idle
            for one, _ in events:
                if one is socket:
                    self._has_come = True
                elif listener is not None and one == listener.fileno():
                    listener.receive()
                    self._core.links.memory_changed()
                elif one == connections.fileno():
                    connections.receive()
                else:
                    self._wakeup.clear()

    def _round(self) -> bool:
        """Reads what has come, merges the most urgent slice, and sends. It reads again after each slice; in a flood
        only after it has merged for as long as it has read, or more would come than is ever merged. Returns whether
        there is nothing left to do before something comes."""
        core, work, begun = self._core, self._core.work, self._clock()
        while self._calls:
            self._calls.popleft()()
        is_drained = self._receive(begun)
        received = now = self._clock()
        if work.queue:
            is_drained = False
            work.work_once()
            now = self._clock()
            while now - received < received - begun and work.work_once():
                now = self._clock()
            self._seconds[work.stage] += now - received
            if self._trace is not None:
                self._record(self._trace, work.stage, now - received)
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
            filled, outgoing = self._clock(), links.outgoing
            links.outgoing = []
            for identity, parts in outgoing:
                if not self._router.send(identity, parts):
                    links.disconnect(identity)
            sent = self._clock()
            self._seconds["answer"] += filled - now
            self._seconds["send"] += sent - filled
            if self._trace is not None:
                self._record(self._trace, "send", sent - filled, outgoing)
        return not work.queue and not links.waiting

    def _receive(self, begun: float) -> bool:
        """Reads what has come; of a flood, some. Returns whether nothing is left."""
        core, router, clock, seconds = self._core, self._router, self._clock, self._seconds
        until = begun + RECEIVE_S
        while router.is_dropping:
            router.drop()
            self._has_come = False  # That was it.
            if (begun := clock()) > until:
                return False
        for _ in range(MESSAGES_A_ROUND):
            if not self._has_come and not router.is_readable:
                return True
            self._has_come = False
            identity, parts = router.receive()
            received_at = clock()
            core.receive(identity, parts, received_at)
            done = clock()
            merged, core.work.at_once_s = core.work.at_once_s, 0.0
            seconds["receive"] += received_at - begun
            seconds["decode"] += done - received_at - merged
            seconds["merge"] += merged
            if self._trace is not None:
                self._record(self._trace, "decode", done - received_at - merged, ((identity, parts),))
                if merged:
                    self._record(self._trace, "merge", merged)
            if done > until or router.is_dropping:
                return False
            begun = done
        return False

    def _record(
        self, trace: TraceRecorder, stage: Stage, seconds: float, messages: Iterable[tuple[bytes, object]] = ()
    ) -> None:
        """Traces the time that has just passed, if its step is traced; with messages, for the slot of each."""
        step = self._stragglers.newest + 1
        kind, name = _SPANS[stage]
        if trace.covers(step):
            begun = trace.now() - round(seconds * 1e9)
            if not messages:
                trace.add(kind, name, step, begun)
            for identity, _ in messages:
                if (peer := self._core.peers.get(identity)) is not None:
                    trace.add(kind, f"{name} {peer.slot}", step, begun, peer.slot)
        elif step > trace.last and stage == "send":
            self._trace = None
            self._traced()

    def _tick(self, now: float) -> None:
        late_s = now - self._next_tick
        self._next_tick = now + self._settings.ping_s / 2
        peers = self._core.peers
        moving = self._router.connections.moving({one: peer.received for one, peer in peers.items()})
        for identity in [*peers] if self._router.is_dropping else moving:
            peers[identity].heard = now
            self._core.links.say(identity, Pong())  # Its pings come behind the message.
        self._core.tick(now, late_s if late_s > STALL_S else 0.0)
        if self._listener is not None:  # It may have lacked descriptors for clients that wait.
            self._listener.receive()
            self._core.links.memory_changed()
        self._router.connections.tick()

    def _close(self) -> None:
        with self._opening:
            self._stopping = True
        for identity in list(self._core.peers):
            self._core.links.disconnect(identity)
        self._router.close()
        if self._listener is not None:
            self._listener.close()
        if self._core.job is not None:
            self._core.job.close()


def _shared_memory(make: Callable[[], T]) -> T | None:
    """What is shared with clients of this host; None where the system has no such thing."""
    try:
        return make()
    except ArenaError as error:
        _log.info("values are copied for clients of this host: %s", error)
        return None
