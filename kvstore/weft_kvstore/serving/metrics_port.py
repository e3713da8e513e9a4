"""Serves a shard's metrics over HTTP, where Prometheus fetches them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

from weft_kvstore.errors import StoreError
from weft_kvstore.serving.metrics import ShardCollector
from weft_kvstore.statistics.records import ShardStatistics

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
