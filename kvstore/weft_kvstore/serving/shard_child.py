"""A shard of one job as a process of its own: what a daemon's child does from its fork to its end.

The daemon's first line is a `ShardTask`. The child answers with `ready` and its endpoint or with `failed` and why, and
then each line of the daemon's with its statistics. It ends by SIGTERM, or when the daemon's end of the channel closes.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any, Final

import msgspec
import structlog  # noqa: F401 - `start_daemon` imports it late, in each child anew: it takes longer than the rest

from weft.api.daemon import start_daemon
from weft_kvstore.description.records import description_from_json
from weft_kvstore.errors import StoreError
from weft_kvstore.quotas import Quotas
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.runtime.process import tune_process
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import OpenStoppedError
from weft_kvstore.statistics import ShardStatistics
from weft_kvstore.structs import Reader

_log = logging.getLogger("weft.shard")


class ShardTask(msgspec.Struct, frozen=True):
    """All that a child needs. `binds`: where it may listen, the first that is free is taken."""

    name: str
    store: dict[str, Any]
    """The description, in its form as JSON."""
    shard: int
    binds: tuple[str, ...]
    link: LinkSettings = LinkSettings()
    apply_threads: int = 0
    tables: TablePlace | None = None
    quotas: Quotas = Quotas()


_TASKS: Final[Reader[ShardTask]] = Reader(ShardTask)
_STATISTICS: Final[Reader[ShardStatistics]] = Reader(ShardStatistics)


def statistics_of(line: dict[str, Any]) -> ShardStatistics:
    """What a child has answered."""
    return _STATISTICS.from_builtins(line["statistics"])


def main(channel: socket.socket) -> None:
    """Serves until it is to end. What the task itself is at fault for is said on the channel; the rest is raised."""
    reader = channel.makefile("rb")
    task = _TASKS.from_json(reader.readline())
    stop = start_daemon(task.name)
    tune_process()

    speaking = threading.Lock()

    def say(**facts: object) -> None:
        with speaking:
            channel.sendall(msgspec.json.encode(facts) + b"\n")

    try:
        with _listening(task) as server:
            threading.Thread(target=_end_with, args=(server, stop), name="await-shard", daemon=True).start()
            server.open(description_from_json(task.store), task.shard, stopped=stop.is_set)
            say(ready=server.endpoint)

            def answer() -> None:
                for _ in reader:
                    say(statistics=server.statistics())
                stop.set()

            threading.Thread(target=answer, name="answer", daemon=True).start()
            stop.wait()
            if server.error is not None:
                say(failed=f"the shard has failed: {server.error}")
    except OpenStoppedError:
        _log.info("job %s is not wanted any more", task.store.get("job"))
    except (StoreError, ValueError, MemoryError) as error:
        say(failed=str(error) or type(error).__name__)


def _listening(task: ShardTask) -> ShardServer:
    """At the first of the endpoints that is free. Raises the last one's StoreError."""
    for bind in task.binds[:-1]:
        try:
            return _server_at(bind, task)
        except StoreError:
            continue
    return _server_at(task.binds[-1], task)


def _server_at(bind: str, task: ShardTask) -> ShardServer:
    return ShardServer(
        bind, settings=task.link, apply_threads=task.apply_threads, tables=task.tables, quotas=task.quotas
    )


def _end_with(server: ShardServer, stop: threading.Event) -> None:
    server.ended.wait()
    stop.set()
