"""What client and shard count, as records taken at one moment. Bytes are counted where they pass the socket, and those
that pass through shared memory for themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft_kvstore.quotas import NO_QUOTAS, Quotas
from weft_kvstore.statistics.job_statistics import JobStatistics
from weft_kvstore.statistics.queue_depth import QueueDepth
from weft_kvstore.statistics.stages import Stage


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
    `apply_threads`: what the socket's thread and those that help it have computed. `waiting_messages` wait for their
    job's turn, `silenced_links` said more than may wait. `stages`: seconds of the socket's thread. `queues`: what
    waits, by priority. `arenas` of clients of this host are mapped; `arena_refusals` counts those that were turned
    away. `shared_bytes_*` are payloads that passed through them, and no socket."""

    bytes_sent: int
    bytes_received: int
    frames_sent: int
    frames_received: int
    malformed: int
    refused: int
    unknown_links: int
    jobs: int
    links: int
    work_slices: int
    queued_bytes: int
    in_flight_bytes: int
    waiting_pulls: int
    waiting_sets: int
    apply_threads: tuple[ApplyStatistics, ...] = ()
    arenas: int = 0
    arena_refusals: int = 0
    waiting_messages: int = 0
    silenced_links: int = 0
    stages: Mapping[Stage, float] = field(default_factory=dict)
    queues: tuple[QueueDepth, ...] = ()
    per_job: tuple[JobStatistics, ...] = ()
    quotas: Quotas = NO_QUOTAS
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0
