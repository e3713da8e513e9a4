"""A shard of one job as a process of its own: what a daemon's child does from its fork to its end.

The daemon's first line is a `ShardTask`. The child answers with a report that it is ready and where, or that it has
failed and why. Then the daemon says `{"asked": number}`, which is answered by statistics, and `{"snapshot": {...}}`,
which is answered by a report once its file is written. The last statistics come at the child's end: by SIGTERM, or when
the daemon's end of the channel closes.
"""

from __future__ import annotations

import codecs
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog  # noqa: F401 - `start_daemon` imports it late, in each child anew: it takes longer than the rest

from weft.agent.machine import exhausted
from weft.agent.startup import start_daemon
from weft.agent.trace import TraceRecorder
from weft.api.trace import TraceWindow
from weft_kernels.random import draws
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
from weft_kvstore.shard.snapshot import Held, MissedError, saved
from weft_kvstore.snapshot_files import Snapshot, SnapshotError
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
    snapshot: Snapshot | None = None
    """What the job begins with; None: with its first values."""
    keep_previous: bool = False
    """See `JobShard`."""
    trace_first_step: int = 1
    trace_steps: int = 0
    """See `weft.api.trace.TraceWindow`."""


class SnapshotWanted(msgspec.Struct, frozen=True):
    """What the shard holds at version `step` is to be written to a folder; of tables what has changed since another."""

    step: int
    folder: str
    since: int | None = None


class Question(msgspec.Struct, frozen=True):
    """A line of the daemon's: one of both."""

    asked: int | None = None
    snapshot: SnapshotWanted | None = None


_TASKS: Final[Reader[ShardTask]] = Reader(ShardTask)
_QUESTIONS: Final[Reader[Question]] = Reader(Question)


def prepare() -> None:
    """What would be found late, and in each child anew."""
    rules()
    draws((0, 0), 0, 1)
    codecs.lookup("ascii")


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

    window = TraceWindow(first_step=task.trace_first_step, steps=task.trace_steps)
    trace = TraceRecorder.of(window, "shard", task.shard)

    def tell_trace() -> None:
        for part in trace.take() if trace is not None else ():
            say(report={"trace": part.model_dump(mode="json")})

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
            trace=trace,
            traced=threading.Thread(target=tell_trace, name="tell-trace", daemon=True).start,
        ) as server:
            threading.Thread(target=server.wake_at_end, args=(stop,), name="await-shard", daemon=True).start()

            def answer() -> None:
                try:
                    for line in reader:
                        question = _QUESTIONS.from_json(line)
                        if question.snapshot is not None:
                            _write_snapshot(server, task, question.snapshot, say)
                        if question.asked is not None:
                            say(statistics=server.statistics(), asked=question.asked)
                finally:
                    stop.set()

            description = description_from_json(task.store)
            server.open(
                description,
                task.shard,
                snapshot=task.snapshot,
                keeps_previous=task.keep_previous,
                stopped=stop.is_set,
            )
            say(report={"event": "ready", "endpoint": advertised(server.endpoint, task.advertise)})
            threading.Thread(target=answer, name="answer", daemon=True).start()
            stop.wait()
            if server.error is not None:
                fail(f"the shard has failed: {server.error}")
            say(statistics=server.statistics(), asked=0)
    except SnapshotError as error:
        assert task.snapshot is not None
        unreadable = {"step": task.snapshot.step, "error": str(error)}
        say(report={"event": "failed", "reason": str(error), "lost": True, "snapshot": unreadable})
    except OpenStoppedError:
        _log.info("job %s is not wanted any more", task.store.get("job"))
    except (StoreError, ValueError, MemoryError) as error:
        fail(exhausted(error) or str(error) or type(error).__name__)


def _write_snapshot(server: ShardServer, task: ShardTask, wanted: SnapshotWanted, say: Callable[..., None]) -> None:
    """Captures the shard, and writes its file on a thread of its own. What becomes of it is reported."""

    def write(held: Held) -> None:
        name = f"shard-{task.shard}.safetensors"
        done = saved(wanted.folder, name, held, job=task.store["job"], step=wanted.step)
        say(report={"snapshot": done})

    def told(outcome: Held | MissedError) -> None:
        if isinstance(outcome, MissedError):
            say(report={"snapshot": {"step": wanted.step, "error": str(outcome), "missed": True}})
        else:
            threading.Thread(target=write, args=(outcome,), name="write-snapshot").start()

    server.capture(wanted.step, told, since=wanted.since)


def advertised(bound: str, host: str | None) -> str:
    """The endpoint to tell workers."""
    if host is not None:
        return f"tcp://{host}:{bound.rpartition(':')[2]}"
    for wildcard in _WILDCARDS:
        if bound.startswith(wildcard):
            return f"tcp://{socket.gethostname()}:{bound.removeprefix(wildcard)}"
    return bound
