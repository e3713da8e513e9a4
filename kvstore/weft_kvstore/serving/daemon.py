"""The shard's daemon: registers with a server, and runs the shards of the jobs that it is given."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Final, Protocol

from pydantic import ByteSize, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weft.api.agent import AgentKind, Orders, Registration, ShardAllocation
from weft.api.alive import HANGS_AFTER_S, AliveFile
from weft.api.base import Name
from weft.api.daemon import start_daemon
from weft.api.lifecycle import AllocationEvent
from weft.api.membership import Join, joining
from weft_kvstore.description.form import check_port
from weft_kvstore.description.records import description_from_json
from weft_kvstore.encryption.curve_authenticator import CurveAuthenticator
from weft_kvstore.encryption.key_files import read_curve_keys
from weft_kvstore.errors import StoreError
from weft_kvstore.quotas import Quotas
from weft_kvstore.rows.memory import LEAST_MEMORY_BYTES, TablePlace
from weft_kvstore.runtime.process import tune_process
from weft_kvstore.serving.metrics import metrics_served
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.serving.stand_alone import serve_alone, stop_with
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import OpenStoppedError

# --- One shard that the daemon was ordered to hold: it is opened on a thread of its own, which may take long ----------


_log = logging.getLogger("weft.shard")


class Reports(Protocol):
    """What is told of an allocation."""

    def report(self, *, event: AllocationEvent, reason: str | None = None) -> None: ...

    def flush(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


class HeldShard:
    """Says READY once it is open, or FAILED; nothing any more after `drop`. Invariant: it is open only while it is
    wanted, but for the moment in which its thread sees that it is not."""

    def __init__(self, server: ShardServer, allocation: ShardAllocation, reporter: Reports) -> None:
        self._server = server
        self._allocation = allocation
        self._reporter = reporter
        self._gone = threading.Event()
        self._lock = threading.Lock()
        """Held while it is told or changed whether it is open, and whether it is wanted."""
        self._is_open = False
        threading.Thread(target=self._open, name=f"open-{allocation.job}", daemon=True).start()

    def drop(self) -> None:
        """It is wanted no more. What is being opened stops soon, and is closed."""
        with self._lock:
            self._gone.set()
            is_open = self._is_open
        if is_open:
            self._close()
        self._reporter.close()

    def leave(self, timeout_s: float) -> None:
        """The daemon ends: the last reports are sent. The jobs end with the process."""
        self._gone.set()
        self._reporter.flush(timeout_s)
        self._reporter.close()

    def _open(self) -> None:
        allocation = self._allocation
        try:
            description = description_from_json(allocation.store.model_dump(mode="json"))
            self._server.open(description, allocation.shard, stopped=self._gone.is_set)
        except OpenStoppedError:
            _log.info("job %s, term %d is not wanted any more", allocation.job, allocation.term)
        except (StoreError, ValueError, MemoryError) as error:
            # msgspec.ValidationError and DescriptionError are ValueErrors.
            reason = f"shard {allocation.shard} of job {allocation.job}: {error or type(error).__name__}"
            _log.error("%s", reason)
            self._tell(AllocationEvent.FAILED, reason)
        else:
            _log.info("shard %d of job %s, term %d is open", allocation.shard, allocation.job, allocation.term)
            if not self._tell(AllocationEvent.READY):
                self._close()

    def _tell(self, event: AllocationEvent, reason: str | None = None) -> bool:
        """Reports, if it is wanted still."""
        with self._lock:
            if self._gone.is_set():
                return False
            self._is_open = event is AllocationEvent.READY
            self._reporter.report(event=event, reason=reason)
            return True

    def _close(self) -> None:
        """A job that is hard to close must not end the daemon of the others: it is closed later."""
        job, term = self._allocation.store.job, self._allocation.term
        try:
            self._server.close_job(job, term)
        except StoreError as error:
            _log.error("job %s, term %d is not closed yet: %s", job, term, error)
        else:
            _log.info("job %s, term %d is closed", job, term)


# --- The shard daemon: holds what the server orders -------------------------------------------------------------------
# `stand_alone` is what it does without a server.


FLUSH_S: Final = 0.5
"""For the last reports to reach the server once the daemon is to end."""
LEAVE_S: Final = 2.0

ANY_PORT: Final = "tcp://127.0.0.1:0"

_WILDCARDS: Final = ("tcp://0.0.0.0:", "tcp://*:", "tcp://[::]:")


class ShardSettings(BaseSettings):
    """A shard daemon's settings, each from the command line or from an environment variable WEFT_SHARD_..."""

    model_config = SettingsConfigDict(
        env_prefix="WEFT_SHARD_", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    server: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """The server's URL; without one, `description` and `shard` say what to serve."""
    description: Path | None = None
    """A file with a store's description, TOML or JSON, for a store used alone."""
    shard: Annotated[int, Field(ge=0)] | None = None
    """Which shard of the description this is."""
    name: Name = "shard"
    """What people call this shard."""
    bind: str | None = None
    """Where to listen; port 0 takes any free one. If left out, what the description says, or a free port of this
    machine alone: not beyond it unless told, for the links are encrypted only where `curve_keys` says so."""
    advertise: str | None = None
    """The endpoint that workers reach; what was bound where left out, with the host's name for a wildcard."""
    token: str | None = None
    """The bearer token that the server asks of agents, where it asks for one."""
    credit_bytes: Annotated[int, Field(ge=1)] | None = None
    """Payload bytes under way on one link; follows the link's rate where left out."""
    frame_bytes: Annotated[int, Field(ge=1, le=1 << 25)] | None = None
    """Payload bytes of a frame; about 2 ms of the link's rate where left out."""
    curve_keys: Path | None = None
    """The file with this shard's CURVE keys, as `new_curve_keys` makes it: links are encrypted then. Of a store used
    alone."""
    curve_clients: Path | None = None
    """A directory with the public keys of the clients that are let in; whoever knows this shard's where left out."""
    table_directory: Path | None = None
    """Where rows of tables lie that have no place in `table_memory`; in memory, all of them, where left out."""
    table_memory: ByteSize | None = None
    """How much memory the rows of one table may take, as 4GiB; more of them lie in `table_directory`."""
    apply_threads: Annotated[int, Field(ge=0, le=256)] = 0
    """Threads that help the socket's with updates that can be cut."""
    job_bytes: ByteSize | None = None
    """The most that a job may take of this shard, as 4GiB: values, the rule's state, and what waits. As much as there
    is, where left out; so it is with those that follow."""
    job_keys: Annotated[int, Field(ge=0)] | None = None
    """The most keys that a job may have here."""
    job_rows: Annotated[int, Field(ge=0)] | None = None
    """The most rows of tables that a job may have here."""
    total_bytes: ByteSize | None = None
    """The most that all jobs together may take."""
    total_keys: Annotated[int, Field(ge=0)] | None = None
    """The most keys of all jobs."""
    total_rows: Annotated[int, Field(ge=0)] | None = None
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Where to serve Prometheus metrics over HTTP; 0 takes any free port; nowhere where left out."""
    metrics_host: str = "127.0.0.1"
    """The address for that: this machine alone unless told."""
    silence_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Seconds without a word after which a slot is held to be lost."""
    alive_file: Path | None = None
    """A file that is touched at every heartbeat while the daemon's work goes on: its age tells a probe if it hangs."""
    exit_with_parent: bool = False
    """Whether to end when standard input closes."""

    @field_validator("bind")
    @classmethod
    def _has_a_port(cls, bind: str | None) -> str | None:
        check_port(bind or "", "bind")
        return bind

    @field_validator("table_directory")
    @classmethod
    def _is_there(cls, directory: Path | None) -> Path | None:
        # It is not made: what is meant may be a disk that is not mounted.
        if directory is not None and not directory.is_dir():
            raise ValueError(f"{directory} is not there; make the directory first")
        return directory

    @model_validator(mode="after")
    def _one_source(self) -> ShardSettings:
        if (self.server is None) == (self.description is None):
            raise ValueError("give either --server URL, to serve a weft server's jobs, or --description FILE --shard N")
        if (self.description is None) != (self.shard is None):
            raise ValueError("--description and --shard belong together: which file, and which of its shards, from 0")
        if self.curve_keys is not None and self.server is not None:
            raise ValueError("--curve-keys belongs to --description: a weft server does not hand keys out to workers")
        if self.curve_clients is not None and self.curve_keys is None:
            raise ValueError("--curve-clients needs --curve-keys: without keys of its own the shard lets everybody in")
        if (self.table_directory is None) != (self.table_memory is None):
            told = "--table-directory and --table-memory belong together: where rows lie, and from what size on"
            raise ValueError(told)
        if self.table_memory is not None and self.table_memory < LEAST_MEMORY_BYTES:
            told = f"--table-memory: at least {LEAST_MEMORY_BYTES} bytes, not {int(self.table_memory)}"
            raise ValueError(told)
        return self

    @property
    def tables(self) -> TablePlace | None:
        if self.table_directory is None or self.table_memory is None:
            return None
        return TablePlace(self.table_directory, self.table_memory)

    def read_authenticator(self) -> CurveAuthenticator | None:
        """Who is let in, by the files with keys. Raises OSError and CurveKeyError."""
        if self.curve_keys is None:
            return None
        return CurveAuthenticator(read_curve_keys(self.curve_keys), self.curve_clients)

    @property
    def quotas(self) -> Quotas:
        return Quotas(self.job_bytes, self.job_keys, self.job_rows, self.total_bytes, self.total_keys, self.total_rows)

    def server_at(self, endpoint: str, authenticator: CurveAuthenticator | None = None) -> ShardServer:
        """A server that is bound there. Raises StoreError."""
        return ShardServer(
            endpoint,
            settings=self.link,
            apply_threads=self.apply_threads,
            tables=self.tables,
            quotas=self.quotas,
            authenticator=authenticator,
        )

    def serving_metrics(self, server: ShardServer) -> AbstractContextManager[str | None]:
        """Serves its metrics, where that is wanted; see `metrics_served`."""
        return metrics_served(self.metrics_host, self.metrics_port, server.statistics)

    @property
    def link(self) -> LinkSettings:
        return LinkSettings(credit_bytes=self.credit_bytes, frame_bytes=self.frame_bytes, silence_s=self.silence_s)


@dataclass(frozen=True, slots=True)
class Lease:
    """An allocation in one term."""

    id: str
    term: int


def changes(held: set[Lease], orders: Orders) -> tuple[set[Lease], list[tuple[Lease, ShardAllocation]]]:
    """What is to be stopped and what is to be started, so that exactly the orders are held."""
    wanted = {Lease(one.id, one.term): one for one in orders.allocations if isinstance(one, ShardAllocation)}
    return held - set(wanted), [(lease, one) for lease, one in wanted.items() if lease not in held]


class ShardDaemon:
    """Carries orders out one after the other, on the thread that calls `run`; each job is opened on one of its own."""

    def __init__(self, settings: ShardSettings, server: ShardServer, *, join: Join | None = None) -> None:
        self._settings = settings
        self._server = server
        self._orders: SimpleQueue[Orders | None] = SimpleQueue()
        self._held: dict[Lease, HeldShard] = {}
        endpoint = advertised(settings, server.endpoint)
        registration = Registration(kind=AgentKind.SHARD, name=settings.name, endpoint=endpoint, pid=os.getpid())
        lives = lambda: server.round_age_s < HANGS_AFTER_S  # noqa: E731
        alive = AliveFile(settings.alive_file, lives) if settings.alive_file is not None else None
        join = join or joining(settings.server, token=settings.token, alive=alive)
        self._members = join(registration, self)

    def hold(self, orders: Orders) -> None:
        """Called on the membership's thread."""
        self._orders.put(orders)

    def lost(self) -> None:
        """Called on the membership's thread: holding nothing is the order."""
        self._orders.put(Orders(version=0, allocations=[]))

    def run(self, stop: threading.Event) -> None:
        """Serves until `stop` is set. What it held is dropped then."""
        membership = threading.Thread(target=self._join_in, args=(stop,), name="membership", daemon=True)
        membership.start()
        while (orders := self._orders.get()) is not None:
            self._carry_out(orders)
        for held in self._held.values():
            held.leave(FLUSH_S)
        membership.join(LEAVE_S)
        if not membership.is_alive():
            self._members.close()

    def _join_in(self, stop: threading.Event) -> None:
        waiting = threading.Thread(target=self._end_when, args=(stop,), name="await-stop", daemon=True)
        waiting.start()
        self._members.run(stop)

    def _end_when(self, stop: threading.Event) -> None:
        stop.wait()
        self._orders.put(None)

    def _carry_out(self, orders: Orders) -> None:
        gone, new = changes(set(self._held), orders)
        for lease in gone:
            self._held.pop(lease).drop()
        for lease, allocation in new:
            self._held[lease] = HeldShard(self._server, allocation, self._members.reporter(lease.id, lease.term))


def advertised(settings: ShardSettings, bound: str) -> str:
    """The endpoint to tell workers."""
    if settings.advertise is not None:
        return settings.advertise
    for wildcard in _WILDCARDS:
        if bound.startswith(wildcard):
            return f"tcp://{socket.gethostname()}:{bound.removeprefix(wildcard)}"
    return bound


def serve(settings: ShardSettings) -> None:
    """Runs the daemon until a signal, or its parent's end, stops it. Raises StoreError where it cannot bind, and for a
    description what `serve_alone` raises."""
    tune_process()

    def start() -> threading.Event:
        return start_daemon(settings.name, exit_with_parent=settings.exit_with_parent)

    if settings.description is not None and settings.shard is not None:
        serve_alone(settings.description, settings.shard, settings, start)
        return
    stop = start()
    with settings.server_at(settings.bind or ANY_PORT) as server, settings.serving_metrics(server) as metrics:
        _log.info("listening on %s", server.endpoint)
        if metrics is not None:
            _log.info("metrics at %s", metrics)
        threading.Thread(target=stop_with, args=(server, stop), name="await-shard", daemon=True).start()
        ShardDaemon(settings, server).run(stop)
        if server.error is not None:
            raise StoreError(f"the shard has failed: {server.error}")
