"""A shard's metrics, and the port at which Prometheus reads them.

A shard's statistics are numbers by metric: `NAME`, or `NAME:LABEL` where the metric has labels. Those of several shards
are added up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from weft_kvstore.errors import StoreError


class MetricKind(NamedTuple):
    """Whether it is a counter, which only grows, or a gauge; what it means; its labels."""

    family: type[CounterMetricFamily] | type[GaugeMetricFamily]
    text: str
    labels: tuple[str, ...] = ()


METRICS: Final[Mapping[str, MetricKind]] = {
    "received_bytes": MetricKind(CounterMetricFamily, "Bytes that came in at the socket."),
    "sent_bytes": MetricKind(CounterMetricFamily, "Bytes handed to the socket."),
    "shared_memory_received_bytes": MetricKind(CounterMetricFamily, "Bytes that came through shared memory."),
    "shared_memory_sent_bytes": MetricKind(CounterMetricFamily, "Bytes sent through shared memory."),
    "received_frames": MetricKind(CounterMetricFamily, "Frames of gradients, values and ids."),
    "sent_frames": MetricKind(CounterMetricFamily, "Frames of values."),
    "malformed_messages": MetricKind(CounterMetricFamily, "Messages that were none of the format."),
    "refused_requests": MetricKind(CounterMetricFamily, "Hellos, pushes and pulls that were refused."),
    "unknown_link_messages": MetricKind(CounterMetricFamily, "Messages before a Hello."),
    "refused_arenas": MetricKind(CounterMetricFamily, "Shared memory of workers that was refused."),
    "stage_seconds": MetricKind(CounterMetricFamily, "Where the socket thread's time goes.", ("stage",)),
    "jobs": MetricKind(GaugeMetricFamily, "Jobs that are open."),
    "links": MetricKind(GaugeMetricFamily, "Connections of workers."),
    "arenas": MetricKind(GaugeMetricFamily, "Workers whose shared memory is mapped."),
    "waiting_pulls": MetricKind(GaugeMetricFamily, "Pulls that are not answered."),
    "waiting_sets": MetricKind(GaugeMetricFamily, "Values set for versions to come."),
    "work_queue_pieces": MetricKind(GaugeMetricFamily, "Pieces of work that wait."),
    "send_queue_bytes": MetricKind(GaugeMetricFamily, "Bytes that wait to be sent."),
    "in_flight_bytes": MetricKind(GaugeMetricFamily, "Bytes sent and not acknowledged."),
    "job_links": MetricKind(GaugeMetricFamily, "A job's connections.", ("job",)),
    "job_memory_bytes": MetricKind(GaugeMetricFamily, "Memory of a job's process.", ("job",)),
    "job_rows": MetricKind(GaugeMetricFamily, "Rows of a job's tables here.", ("job",)),
    "job_received_bytes": MetricKind(CounterMetricFamily, "Bytes that came from a job at the socket.", ("job",)),
    "job_sent_bytes": MetricKind(CounterMetricFamily, "Bytes that the socket sent to a job.", ("job",)),
    "job_shared_memory_received_bytes": MetricKind(
        CounterMetricFamily, "Bytes that came from a job through shared memory.", ("job",)
    ),
    "job_shared_memory_sent_bytes": MetricKind(
        CounterMetricFamily, "Bytes sent to a job through shared memory.", ("job",)
    ),
    "job_waited_seconds": MetricKind(
        GaugeMetricFamily, "How long a job's steps waited for the slot that they waited for most.", ("slot", "job")
    ),
}
"""By name, without `weft_shard_` and the `_total` of what counts; in the order of docs/metrics.md."""


def kind_of(name: str) -> MetricKind:
    """What a statistic of that name is of."""
    return METRICS[name.partition(":")[0]]


def summed(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Shards' statistics as one's."""
    total = {name: 0.0 for name, kind in METRICS.items() if not kind.labels}
    for one in several:
        for name, number in one.items():
            total[name] = total.get(name, 0.0) + number
    return total


def counted(statistics: Mapping[str, float]) -> dict[str, float]:
    """The statistics of a shard that has ended which still count: its counters, but for those of its job."""
    return {
        name: number
        for name, number in statistics.items()
        if kind_of(name).family is CounterMetricFamily and "job" not in kind_of(name).labels
    }


class ShardCollector(Collector):
    """Asks for statistics each time it is collected from."""

    def __init__(self, statistics: Callable[[], Mapping[str, float]]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        families = {
            name: kind.family(f"weft_shard_{name}", kind.text, labels=kind.labels) for name, kind in METRICS.items()
        }
        for name, number in self._statistics().items():
            metric, *labels = name.split(":", len(kind_of(name).labels))
            families[metric].add_metric(labels, number)
        yield from families.values()


END_S: Final = 5.0
"""How long the end of the thread that serves metrics is waited for."""

MOST_AT_ONCE: Final = 16
"""Open connections to the port of metrics, each of which has a thread. Further ones are closed."""

SILENT_S: Final = 10.0
"""A connection that says nothing for so long is closed."""


class _Handler(MetricsHandler):
    timeout = SILENT_S


class _Server(ThreadingHTTPServer):
    request_queue_size = 4 * MOST_AT_ONCE

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.Semaphore(MOST_AT_ONCE)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # No thread can be had.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is logged: the client has gone, or has said nothing."""


@contextmanager
def metrics_served(host: str, port: int | None, statistics: Callable[[], Mapping[str, float]]) -> Iterator[str | None]:
    """Serves what `statistics` gives, at GET /metrics, until the end: the URL. Port 0 takes any free one, and with no
    port it serves nothing. Raises StoreError where it cannot listen."""
    if port is None:
        yield None
        return
    registry = CollectorRegistry()
    registry.register(ShardCollector(statistics))
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        kind = type("Server", (_Server,), {"address_family": family})
        server: ThreadingHTTPServer = kind((address[0], port), _Handler.factory(registry))
    except (OSError, OverflowError) as error:
        raise StoreError(f"cannot serve metrics at {host}:{port}: {error}") from error
    thread = threading.Thread(target=server.serve_forever, name="weft-metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(END_S)
