"""A shard's metrics, and the port at which they are read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from weft_kvstore.errors import StoreError
from weft_kvstore.statistics import JobStatistics, ShardStatistics

# --- A shard's statistics as Prometheus metrics: counted when they are asked for, so that they cost nothing before ----


MOST_JOBS: Final = 64
"""Jobs that have lines of their own, those with most memory; the others are added up."""

OTHERS: Final = "(others)"

Samples = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A metric: its name, without the `_total` of a counter, what it says, its labels, and its samples."""

    name: str
    told: str
    counts: bool
    labels: tuple[str, ...]
    samples: Callable[[ShardStatistics], Samples]

    @property
    def shown_name(self) -> str:
        """As Prometheus shows it."""
        return f"{self.name}_total" if self.counts else self.name


def _one(read: Callable[[ShardStatistics], float]) -> Callable[[ShardStatistics], Samples]:
    return lambda statistics: [((), read(statistics))]


def _by_priority(field: str) -> Callable[[ShardStatistics], Samples]:
    return lambda statistics: [((one.priority,), getattr(one, field)) for one in statistics.queues]


def _by_job(read: Callable[[JobStatistics], float | None]) -> Callable[[ShardStatistics], Samples]:
    def samples(statistics: ShardStatistics) -> Iterator[tuple[tuple[str, ...], float]]:
        for job, some in _jobs(statistics.per_job).items():
            values = [value for one in some if (value := read(one)) is not None]
            if values:
                yield (job,), sum(values)

    return samples


def _of_worst(read: Callable[[JobStatistics], float]) -> Callable[[ShardStatistics], Samples]:
    """Of the term of a job in which most was waited; of jobs that are added up it would say nothing."""

    def samples(statistics: ShardStatistics) -> Iterator[tuple[tuple[str, ...], float]]:
        for job, some in _jobs(statistics.per_job).items():
            waited = [one for one in some if one.waited_slot is not None]
            if waited and job != OTHERS:
                yield (job,), read(max(waited, key=lambda one: one.waited_s))

    return samples


def _jobs(per_job: Sequence[JobStatistics]) -> Mapping[str, list[JobStatistics]]:
    """Jobs by name, all terms together; those beyond `MOST_JOBS` as one."""
    found: dict[str, list[JobStatistics]] = {}
    for one in sorted(per_job, key=lambda one: (-one.memory_bytes, one.job, one.term)):
        name = one.job if one.job in found or len(found) < MOST_JOBS else OTHERS
        found.setdefault(name, []).append(one)
    return found


def _counter(name: str, told: str, samples: Callable[[ShardStatistics], Samples], *labels: str) -> MetricKind:
    return MetricKind(f"weft_shard_{name}", told, True, labels, samples)


def _gauge(name: str, told: str, samples: Callable[[ShardStatistics], Samples], *labels: str) -> MetricKind:
    return MetricKind(f"weft_shard_{name}", told, False, labels, samples)


METRICS: Final = (
    _counter("received_bytes", "Bytes that came in at the socket.", _one(lambda s: s.bytes_received)),
    _counter("sent_bytes", "Bytes handed to the socket.", _one(lambda s: s.bytes_sent)),
    _counter(
        "shared_memory_received_bytes",
        "Bytes that came through shared memory, and no socket.",
        _one(lambda s: s.shared_bytes_received),
    ),
    _counter(
        "shared_memory_sent_bytes",
        "Bytes sent through shared memory, and no socket.",
        _one(lambda s: s.shared_bytes_sent),
    ),
    _counter("received_frames", "Frames of gradients, values and ids.", _one(lambda s: s.frames_received)),
    _counter("sent_frames", "Frames of values.", _one(lambda s: s.frames_sent)),
    _counter("malformed_messages", "Messages that were none of the format.", _one(lambda s: s.malformed)),
    _counter("refused_requests", "Hellos, pushes and pulls that were refused.", _one(lambda s: s.refused)),
    _counter("unknown_link_messages", "Messages before a Hello.", _one(lambda s: s.unknown_links)),
    _gauge("jobs", "Jobs that are open.", _one(lambda s: s.jobs)),
    _gauge("links", "Connections of workers.", _one(lambda s: s.links)),
    _gauge("waiting_pulls", "Pulls that are not answered.", _one(lambda s: s.waiting_pulls)),
    _gauge("waiting_sets", "Values set for versions to come.", _one(lambda s: s.waiting_sets)),
    _gauge("in_flight_bytes", "Bytes sent and not acknowledged.", _one(lambda s: s.in_flight_bytes)),
    _gauge("work_queue_pieces", "Pieces of work that wait.", _by_priority("pieces"), "priority"),
    _gauge("work_queue_bytes", "Bytes of work that waits.", _by_priority("piece_bytes"), "priority"),
    _gauge("send_queue_slices", "Slices that wait to be sent.", _by_priority("slices"), "priority"),
    _gauge("send_queue_bytes", "Bytes that wait to be sent.", _by_priority("slice_bytes"), "priority"),
    _counter(
        "stage_seconds",
        "Where the socket thread's time goes.",
        lambda s: [((stage,), seconds) for stage, seconds in s.stages.items()],
        "stage",
    ),
    _counter(
        "apply_seconds",
        "Time that threads were updating; for the socket's thread, of large updates.",
        lambda s: [((one.name,), one.busy_s) for one in s.apply_threads],
        "thread",
    ),
    _counter(
        "apply_pieces",
        "Pieces of large updates that threads have made.",
        lambda s: [((one.name,), one.pieces) for one in s.apply_threads],
        "thread",
    ),
    _gauge("job_links", "A job's connections.", _by_job(lambda j: j.links), "job"),
    _gauge("job_memory_bytes", "Memory of a job's process.", _by_job(lambda j: j.memory_bytes), "job"),
    _gauge("job_rows", "Rows of a job's tables here.", _by_job(lambda j: j.rows), "job"),
    _counter(
        "job_received_bytes", "Bytes that came from a job at the socket.", _by_job(lambda j: j.bytes_received), "job"
    ),
    _counter(
        "job_sent_bytes", "Bytes of values that the socket sent to a job.", _by_job(lambda j: j.bytes_sent), "job"
    ),
    _counter(
        "job_shared_memory_received_bytes",
        "Bytes that came from a job through shared memory.",
        _by_job(lambda j: j.shared_bytes_received),
        "job",
    ),
    _counter(
        "job_shared_memory_sent_bytes",
        "Bytes of values sent to a job through shared memory.",
        _by_job(lambda j: j.shared_bytes_sent),
        "job",
    ),
    _gauge(
        "job_waited_for_slot",
        "The slot that a job's steps waited for most.",
        _of_worst(lambda j: -1 if j.waited_slot is None else j.waited_slot),
        "job",
    ),
    _gauge("job_waited_for_seconds", "How long they did.", _of_worst(lambda j: j.waited_s), "job"),
)
"""In the order of docs/metrics.md."""


class ShardCollector(Collector):
    """Asks a shard for its statistics each time it is collected from."""

    def __init__(self, statistics: Callable[[], ShardStatistics]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        statistics = self._statistics()
        for kind in METRICS:
            make = CounterMetricFamily if kind.counts else GaugeMetricFamily
            family = make(kind.name, kind.told, labels=kind.labels)
            for labels, value in kind.samples(statistics):
                family.add_metric(labels, value)
            yield family

    def describe(self) -> Iterable[Metric]:
        """Nothing is collected where it is registered."""
        return ()


# --- Serves a shard's metrics over HTTP, where Prometheus fetches them ------------------------------------------------


END_S: Final = 5.0
"""For the thread that serves to end."""

_log = logging.getLogger("weft.shard")


@contextmanager
def metrics_served(host: str, port: int | None, statistics: Callable[[], ShardStatistics]) -> Iterator[str | None]:
    """Serves what `statistics` gives, at GET /metrics, until the end: the URL. Port 0 takes any free one, and with no
    port it serves nothing. Raises StoreError where it cannot listen."""
    if port is None:
        yield None
        return
    registry = CollectorRegistry()
    registry.register(ShardCollector(statistics))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise StoreError(f"cannot serve metrics at {host}:{port}: {error}") from error
    try:
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        yield url
    finally:
        server.shutdown()
        server.server_close()
        _end(thread)


def _end(thread: threading.Thread) -> None:
    thread.join(END_S)
    if thread.is_alive():
        _log.warning("the thread that serves metrics has not ended in %s s", END_S)
