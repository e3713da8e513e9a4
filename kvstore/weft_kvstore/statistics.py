"""What clients and shards count: by link, by job, by stage of the work. Values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, get_args

from weft_kvstore.structs import Reader

# --- Payloads that passed through shared memory, and no socket --------------------------------------------------------


@dataclass(slots=True)
class SharedBytes:
    """Bytes `received` from clients of this host, and `sent` to them."""

    received: int = 0
    sent: int = 0


# --- What waits in a shard's queues, by how urgent it is: in a few groups, for priorities are any numbers -------------


PRIORITIES: Final = ("below 0", "0", "1-9", "10-99", "100-999", "1000 and above")
"""Groups of priorities, the most urgent first; the first layer of a network has 0."""

_BOUNDS: Final = (0, 1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Of one group of priorities: pieces of work that wait and their bytes, and slices that wait to be sent and
    theirs."""

    priority: str
    pieces: int = 0
    piece_bytes: int = 0
    slices: int = 0
    slice_bytes: int = 0


def group_of(priority: int) -> int:
    """The place of a priority's group in `PRIORITIES`."""
    return sum(priority >= bound for bound in _BOUNDS)


def depths(work: Iterable[tuple[int, int]], to_send: Iterable[tuple[int, int, int]]) -> tuple[QueueDepth, ...]:
    """All groups, from (priority, bytes) of pieces of work and (priority, slices, bytes) of what is to be sent."""
    found = [[0, 0, 0, 0] for _ in PRIORITIES]
    for priority, nbytes in work:
        group = found[group_of(priority)]
        group[0] += 1
        group[1] += nbytes
    for priority, slices, nbytes in to_send:
        group = found[group_of(priority)]
        group[2] += slices
        group[3] += nbytes
    return tuple(QueueDepth(name, *counts) for name, counts in zip(PRIORITIES, found, strict=True))


# --- Where a thread's time goes ---------------------------------------------------------------------------------------


Stage = Literal["receive", "decode", "merge", "answer", "send", "idle"]
"""Of a shard's socket thread. Receive: reading messages from the socket; decode: understanding them, taking gradients
in and handing over what can be answered at once; merge: summing, and the rule; answer: reading rows and filling frames;
send: handing frames to the socket; idle: waiting for something to do."""

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


@dataclass(slots=True)
class StageTimes:
    """Seconds in each stage."""

    receive: float = 0.0
    decode: float = 0.0
    merge: float = 0.0
    answer: float = 0.0
    send: float = 0.0
    idle: float = 0.0

    def add(self, stage: Stage, seconds: float) -> None:
        setattr(self, stage, getattr(self, stage) + seconds)

    def told(self) -> dict[Stage, float]:
        """Seconds by the stage's name."""
        return {stage: getattr(self, stage) for stage in STAGES}


# --- What one job is to a shard, at one moment ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """A job in one term, with its `links`. `process` is the number of the one that serves it, `memory_bytes` what that
    holds in memory, `rows` how many its tables have. `bytes_*` passed the socket, `shared_bytes_*` shared memory
    instead.

    `waited_slot`: the slot that its steps have waited for most, `waited_s` seconds from when the first of the others
    was in; None where nobody was, or steps apply slot by slot.
    """

    job: str
    term: int
    process: int
    memory_bytes: int
    rows: int
    links: int
    bytes_received: int
    bytes_sent: int
    shared_bytes_received: int
    shared_bytes_sent: int
    waited_slot: int | None
    waited_s: float


# --- What client and shard count, as records taken at one moment ------------------------------------------------------
# Bytes are counted where they pass the socket, and those that pass through shared memory for themselves.


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """One link from this client's side. `bytes_*` passed the socket, headers and payloads; `payload_*` are payloads
    alone, whichever way they took.

    `queued_*` wait to be sent; `in_flight_bytes` were sent and are not acknowledged. `connections` counts Hellos;
    `welcomed`: the shard talks with this client now. `trouble` is why it does not, once its silence is over or it has
    said so; `taken`: another process has the slot. It has `refused` for good.
    `shared_bytes_*` are what of the payloads passed through shared memory, and no socket; `same_host`: whether it can
    now.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    credit_bytes: int = 0
    rate_bytes_per_s: float | None = None
    connections: int = 0
    welcomed: bool = False
    trouble: str | None = None
    refused: bool = False
    taken: bool = False
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0
    same_host: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Sums over the client's links, and each link by shard number. `operations` are futures that have not ended.
    `bytes_*` passed the sockets, `shared_bytes_*` shared memory instead.

    `rows_pushed` and `rows_pulled` count rows of tables in the calls begun: padding and repetitions left out.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    operations: int = 0
    links: tuple[LinkStatistics, ...] = ()
    rows_pushed: int = 0
    rows_pulled: int = 0
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class ApplyStatistics:
    """What one thread has done: pieces of updates, and the seconds that they took."""

    name: str
    pieces: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """A shard server. `malformed` counts messages that were none of this format or contradicted the description,
    `refused` Hellos and pushes that were refused, `unknown_links` messages from connections without a Hello.
    `waiting_sets` are parts of values that were set for versions still to come; of a table, one for each version.
    `apply_threads`: what the socket's thread and those that help it have computed. `stages`: seconds of the socket's
    thread. `queues`: what waits, by priority. `arenas` of clients of this host are mapped; `arena_refusals` counts
    those that were turned away. `shared_bytes_*` are payloads that passed through them, and no socket."""

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    malformed: int = 0
    refused: int = 0
    unknown_links: int = 0
    jobs: int = 0
    links: int = 0
    work_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    waiting_pulls: int = 0
    waiting_sets: int = 0
    apply_threads: tuple[ApplyStatistics, ...] = ()
    arenas: int = 0
    arena_refusals: int = 0
    stages: Mapping[Stage, float] = field(default_factory=dict)
    queues: tuple[QueueDepth, ...] = ()
    per_job: tuple[JobStatistics, ...] = ()
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0


# --- Of several shards together ---------------------------------------------------------------------------------------


NO_STATISTICS: Final = ShardStatistics()
"""Of no shard."""

_NOW: Final = (
    *("jobs", "links", "work_slices", "queued_bytes", "in_flight_bytes", "waiting_pulls", "waiting_sets", "arenas"),
    *("queues", "per_job"),
)
"""What tells of this moment; the rest counts, and only grows."""

_NUMBERS: Final = tuple(one.name for one in fields(ShardStatistics) if isinstance(one.default, int))

_READER: Final[Reader[ShardStatistics]] = Reader(ShardStatistics)


def statistics_of(line: Mapping[str, Any]) -> ShardStatistics:
    """What a shard's process has told. Raises msgspec.ValidationError."""
    return _READER.from_builtins(line["statistics"])


def counted(of: ShardStatistics) -> ShardStatistics:
    """What still counts of a shard that has ended."""
    return replace(of, **{name: getattr(NO_STATISTICS, name) for name in _NOW})


def summed(several: Sequence[ShardStatistics]) -> ShardStatistics:
    """Shards' statistics as one's."""
    numbers = {name: sum(getattr(one, name) for one in several) for name in _NUMBERS}
    threads: dict[str, ApplyStatistics] = {}
    queues: dict[str, QueueDepth] = {}
    for one in several:
        for thread in one.apply_threads:
            had = threads.get(thread.name, ApplyStatistics(thread.name, 0, 0.0))
            threads[thread.name] = ApplyStatistics(thread.name, had.pieces + thread.pieces, had.busy_s + thread.busy_s)
        for queue in one.queues:
            queued = queues.get(queue.priority, QueueDepth(queue.priority))
            queues[queue.priority] = QueueDepth(
                queue.priority,
                queued.pieces + queue.pieces,
                queued.piece_bytes + queue.piece_bytes,
                queued.slices + queue.slices,
                queued.slice_bytes + queue.slice_bytes,
            )
    stages: dict[Stage, float] = {stage: sum(one.stages.get(stage, 0.0) for one in several) for stage in STAGES}
    return ShardStatistics(
        **numbers,
        stages=stages,
        apply_threads=tuple(threads.values()),
        queues=tuple(queues.values()),
        per_job=tuple(job for one in several for job in one.per_job),
    )
