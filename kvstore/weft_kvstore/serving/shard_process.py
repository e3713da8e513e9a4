"""A shard of one job as a process: a daemon's child (`main`), or alone, as a file describes it (`serve_alone`).

The daemon's first line is a `ShardTask`. The child answers with a report that it is ready and where, or that it has
failed and why. From then on it says its statistics each second, and answers `{"snapshot": {...}}` with a report once
the file is written. It ends by SIGTERM, or when the daemon's end of the channel closes; its last line has the last
statistics.
"""

from __future__ import annotations

import codecs
import logging
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec
import structlog  # noqa: F401 - `start_daemon` imports it late, in each child anew: it takes longer than the rest
import zmq.utils.garbage  # noqa: F401 - `zeromq_context` imports it late

from weft.agent.machine import exhausted
from weft.agent.startup import start_daemon
from weft.agent.trace import TraceRecorder
from weft.api.trace import TraceWindow
from weft_kernels.random import draws
from weft_kernels.rules.lookup import rules
from weft_kvstore.description.check import DescriptionError
from weft_kvstore.description.form import placed_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption import CurveAuthenticator, CurveKeys, read_curve_keys
from weft_kvstore.errors import OpenStoppedError, StoreError
from weft_kvstore.process import tune_process
from weft_kvstore.rows.growing_array import TablePlace
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings, host_of
from weft_kvstore.shard.snapshot import Captured, MissedError, saved
from weft_kvstore.snapshot_files import Snapshot, SnapshotError
from weft_kvstore.structs import Reader

if TYPE_CHECKING:
    from weft_kvstore.serving.daemon import ShardSettings

STATISTICS_S: Final = 1.0
"""Between two lines of statistics."""

_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # they are looked for
"""As ZeroMQ says what it has bound."""

_log = logging.getLogger("weft.shard")


class ShardTask(msgspec.Struct, frozen=True):
    """All that a child needs, read once and never shown: it has a secret. `bind`: where it may listen. `advertise`: the
    host by which workers reach it; what was bound where None, with the host's name for a wildcard. The rest is what the
    server says of its place: see `weft.api.agent.ShardAllocation`."""

    name: str
    store: StoreDescription
    shard: int
    bind: str
    advertise: str | None = None
    tables: TablePlace | None = None
    lost_after_s: float = LinkSettings().silence_s
    curve: CurveKeys | None = None
    curve_clients: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
    keep_previous: bool = False
    trace: Mapping[str, int] = {}
    """The fields of a `TraceWindow`; nothing is traced where there are none."""


class SnapshotRequest(msgspec.Struct, frozen=True):
    """What the shard holds at version `step` is to be written to a folder; of tables what has changed since another."""

    step: int
    folder: str
    since: int | None = None


class Order(msgspec.Struct, frozen=True):
    """A line of the daemon's."""

    snapshot: SnapshotRequest


_TASKS: Final[Reader[ShardTask]] = Reader(ShardTask)
_ORDERS: Final[Reader[Order]] = Reader(Order)


def prepare() -> None:
    """Loads what each child would else load later, for itself."""
    rules()
    draws((0, 0), 0, 1)
    codecs.lookup("ascii")


def main(channel: socket.socket) -> None:
    """Serves until it is told to end. Errors that the task causes are reported; others are raised."""
    reader = channel.makefile("rb")
    speaking = threading.Lock()

    def say(**facts: object) -> None:
        with speaking:
            channel.sendall(msgspec.json.encode(facts) + b"\n")

    def fail(reason: str, **facts: object) -> None:
        say(report={"event": "failed", "reason": reason, **facts})

    task = None
    try:
        task = _TASKS.from_json(reader.readline())
        stop = start_daemon(task.name)
        tune_process()
        trace = TraceRecorder.of(TraceWindow(**task.trace), "shard", task.shard) if task.trace else None

        def say_trace() -> None:
            for one in trace.take() if trace is not None else ():
                say(report={"trace": one.model_dump(mode="json")})

        authenticator = None if task.curve is None else CurveAuthenticator(task.curve, task.curve_clients)
        traced = threading.Thread(target=say_trace, name="say-trace", daemon=True).start
        with _served(task, authenticator, stop, trace=trace, traced=traced) as server:
            say(report={"event": "ready", "endpoint": advertised(server.endpoint, task.advertise)})
            threading.Thread(target=_carry_out, args=(reader, server, task, say, stop), daemon=True).start()
            say(statistics=server.statistics())
            while not stop.wait(STATISTICS_S):
                say(statistics=server.statistics())
            say(statistics=server.statistics())
    except SnapshotError as error:
        assert task is not None
        assert task.snapshot is not None
        fail(str(error), lost=True, snapshot={"step": task.snapshot.step, "error": str(error)})
    except OpenStoppedError:
        _log.info("the job is not wanted any more")
    except (StoreError, ValueError, MemoryError) as error:
        fail(exhausted(error) or str(error) or type(error).__name__)


@contextmanager
def _served(
    task: ShardTask,
    authenticator: CurveAuthenticator | None,
    stop: threading.Event,
    *,
    trace: TraceRecorder | None = None,
    traced: Callable[[], None] = lambda: None,
) -> Iterator[ShardServer]:
    """Serves the task's job while the context lasts. `stop` ends the opening of the job, and is set when the shard
    serves no more. Raises what `ShardServer` and its `open` do, and StoreError at the end if the shard has failed."""
    with ShardServer(
        task.bind,
        settings=LinkSettings(silence_s=task.lost_after_s),
        tables=task.tables,
        authenticator=authenticator,
        trace=trace,
        traced=traced,
        ended=stop,
    ) as server:
        server.open(
            task.store,
            task.shard,
            snapshot=task.snapshot,
            keeps_previous=task.keep_previous,
            stopped=stop.is_set,
        )
        yield server
        if server.error is not None:
            raise StoreError(f"the shard has failed: {server.error}")


def _carry_out(
    reader: Iterator[bytes], server: ShardServer, task: ShardTask, say: Callable[..., None], stop: threading.Event
) -> None:
    """Carries out the daemon's orders until its end of the channel closes."""
    try:
        for line in reader:
            _write_snapshot(server, task, _ORDERS.from_json(line).snapshot, say)
    finally:
        stop.set()


def _write_snapshot(server: ShardServer, task: ShardTask, wanted: SnapshotRequest, say: Callable[..., None]) -> None:
    """Captures the shard, and writes its file on a thread of its own. What becomes of it is reported."""

    def write(held: Captured) -> None:
        name = f"shard-{task.shard}.safetensors"
        say(report={"snapshot": saved(wanted.folder, name, held, job=task.store.job, step=wanted.step)})

    def captured(outcome: Captured | MissedError) -> None:
        if isinstance(outcome, MissedError):
            say(report={"snapshot": {"step": wanted.step, "error": str(outcome), "missed": True}})
        else:
            threading.Thread(target=write, args=(outcome,), name="write-snapshot").start()

    server.capture(wanted.step, captured, since=wanted.since)


def advertised(bound: str, host: str | None) -> str:
    """The endpoint by which workers reach it."""
    if host is None and host_of(bound) in _WILDCARDS:
        host = socket.gethostname()
    return bound if host is None else f"tcp://{host}:{bound.rpartition(':')[2]}"


# --- A shard of a store that is used alone ----------------------------------------------------------------------------


def serve_alone(settings: ShardSettings) -> None:
    """Serves one shard until a signal, or its parent's end, stops it. A line on standard output says when it is ready;
    the log, on standard error, has what goes wrong.

    Raises OSError, DescriptionError, CurveKeyError for the files with keys, and StoreError where it cannot listen or
    fails later.
    """
    from weft_kvstore.serving.metrics import metrics_served  # A daemon's children do without.

    assert settings.description is not None
    assert settings.shard is not None
    path, shard = settings.description, settings.shard
    description = placed_description(path)
    if shard >= len(description.shards):
        raise DescriptionError(f"{path}: shard {shard}: it has {len(description.shards)}, numbered from 0")
    authenticator = None
    if settings.curve_keys is not None:
        authenticator = CurveAuthenticator(read_curve_keys(settings.curve_keys), settings.curve_clients)
    _check_key(description, shard, None if authenticator is None else authenticator.public)
    stop = start_daemon(settings.name, exit_with_parent=settings.exit_with_parent)
    tune_process()
    if settings.job_memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (settings.job_memory, settings.job_memory))
    bind = settings.bind or description.shards[shard]
    if not bind:
        raise DescriptionError(f"shards[{shard}]: no endpoint to listen on; say one with --bind")
    task = ShardTask(settings.name, description, shard, bind, tables=settings.tables, lost_after_s=settings.silence_s)
    with (
        suppress(OpenStoppedError),
        _served(task, authenticator, stop) as server,
        metrics_served(settings.metrics_host, settings.metrics_port, server.statistics) as metrics,
    ):
        encrypted = "" if authenticator is None else ", links encrypted"
        _print(f"ready: shard {shard} of {len(description.shards)} of {path} listens at {server.endpoint}{encrypted}")
        if metrics is not None:
            _print(f"metrics at {metrics}")
        stop.wait()


def _check_key(description: StoreDescription, shard: int, key: str | None) -> None:
    """Raises DescriptionError unless the shard's key is the one that the description gives to clients."""
    expected = description.curve_keys[shard] if description.curve_keys else None
    if key != expected:
        raise DescriptionError(
            f"curve_keys[{shard}]: the description has {expected or 'no key'} of this shard; "
            + (f"the file of --curve-keys has {key}" if key else "name the file with its keys by --curve-keys")
        )


def _print(line: str) -> None:
    """A line on standard output, at once: who starts shards waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
