"""A shard of one job as a process of its own: what a daemon's child does from its fork to its end.

The daemon's first line is a `ShardTask`. The child answers with a report that it is ready and where, or that it has
failed and why, and then each line of the daemon's with its statistics; the last ones come at its end. It ends by
SIGTERM, or when the daemon's end of the channel closes.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any, Final

import msgspec
import structlog  # noqa: F401 - `start_daemon` imports it late, in each child anew: it takes longer than the rest

from weft.api.daemon import start_daemon
from weft_kernels.rules.lookup import rules
from weft_kvstore.description.records import description_from_json
from weft_kvstore.encryption.curve_authenticator import CurveAuthenticator
from weft_kvstore.encryption.curve_keys import CurveKeys
from weft_kvstore.errors import StoreError
from weft_kvstore.process import tune_process
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import OpenStoppedError
from weft_kvstore.structs import Reader

_WILDCARDS: Final = ("tcp://0.0.0.0:", "tcp://*:", "tcp://[::]:")

_log = logging.getLogger("weft.shard")


class ShardTask(msgspec.Struct, frozen=True):
    """All that a child needs, read once and never shown: it has a secret. `bind`: where it may listen. `advertise`: the
    host by which workers reach it; what was bound where None, with the host's name for a wildcard."""

    name: str
    store: dict[str, Any]
    """The description, in its form as JSON."""
    shard: int
    bind: str
    advertise: str | None = None
    link: LinkSettings = LinkSettings()
    apply_threads: int = 0
    tables: TablePlace | None = None
    curve: CurveKeys | None = None
    """Of this shard, where links are encrypted."""
    curve_clients: tuple[str, ...] = ()
    """The public keys of those that are let in then."""


_TASKS: Final[Reader[ShardTask]] = Reader(ShardTask)
_QUESTIONS: Final[Reader[dict[str, int]]] = Reader(dict[str, int])


def prepare() -> None:
    """What would be found late, and in each child anew."""
    rules()


def main(channel: socket.socket) -> None:
    """Serves until it is to end. What the task itself is at fault for is reported; the rest is raised."""
    reader = channel.makefile("rb")
    task = _TASKS.from_json(reader.readline())
    stop = start_daemon(task.name)
    tune_process()

    speaking = threading.Lock()

    def say(**facts: object) -> None:
        with speaking:
            channel.sendall(msgspec.json.encode(facts) + b"\n")

    def fail(reason: str) -> None:
        say(report={"event": "failed", "reason": reason})

    try:
        authenticator = None if task.curve is None else CurveAuthenticator(task.curve, task.curve_clients)
        with ShardServer(
            task.bind,
            settings=task.link,
            apply_threads=task.apply_threads,
            tables=task.tables,
            authenticator=authenticator,
        ) as server:
            threading.Thread(target=server.wake_at_end, args=(stop,), name="await-shard", daemon=True).start()

            def answer() -> None:
                for line in reader:
                    say(statistics=server.statistics(), asked=_QUESTIONS.from_json(line)["asked"])
                stop.set()

            server.open(description_from_json(task.store), task.shard, stopped=stop.is_set)
            say(report={"event": "ready", "endpoint": advertised(server.endpoint, task.advertise)})
            threading.Thread(target=answer, name="answer", daemon=True).start()
            stop.wait()
            if server.error is not None:
                fail(f"the shard has failed: {server.error}")
            say(statistics=server.statistics(), asked=0)
    except OpenStoppedError:
        _log.info("job %s is not wanted any more", task.store.get("job"))
    except (StoreError, ValueError, MemoryError) as error:
        fail(str(error) or type(error).__name__)


def advertised(bound: str, host: str | None) -> str:
    """The endpoint to tell workers."""
    if host is not None:
        return f"tcp://{host}:{bound.rpartition(':')[2]}"
    for wildcard in _WILDCARDS:
        if bound.startswith(wildcard):
            return f"tcp://{socket.gethostname()}:{bound.removeprefix(wildcard)}"
    return bound
