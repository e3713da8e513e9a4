"""The shard's daemon and its settings: it registers with a server, and has a child process for each job's shard."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import ByteSize, DirectoryPath, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weft.agent.children import Forkserver
from weft.agent.machine import memory_bytes
from weft.agent.startup import start_daemon
from weft.api.base import Name
from weft_kvstore.rows.growing_array import LEAST_MEMORY_BYTES, TablePlace
from weft_kvstore.serving.metrics import counted, metrics_served, summed
from weft_kvstore.settings import endpoints_of

if TYPE_CHECKING:
    from weft.agent.membership import Join
    from weft.agent.state import AnyAllocation, Lease

ANY_PORT: Final = "tcp://127.0.0.1:0"


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
    """This shard's name, for people."""
    bind: str | None = None
    """Where to listen; port 0 takes any free one, and `tcp://0.0.0.0:8471-8570` the first free one of a range, for each
    job another. If left out, what the description says, or a free port of this machine alone."""
    advertise: Annotated[str, Field(pattern=r"^[^\s/]+$")] | None = None
    """The host by which workers reach this machine; what was bound where left out, with the host's name for a
    wildcard."""
    token: str | None = None
    """The bearer token that the server asks of agents, where it asks for one."""
    curve_keys: Path | None = None
    """The file with this shard's CURVE keys, as `--new-curve-keys` makes it: links are encrypted then. For a store used
    alone."""
    curve_clients: Path | None = None
    """A directory with the public keys of the clients that are accepted; whoever knows this shard's where left out."""
    table_directory: DirectoryPath | None = None  # It is not made: what is meant may be a disk that is not mounted.
    """Where the rows of tables are kept that do not fit into `table_memory`; all rows are in memory where left out."""
    table_memory: Annotated[ByteSize, Field(ge=LEAST_MEMORY_BYTES)] | None = None
    """How much memory the rows of one table may take, as 4GiB; more of them are kept in `table_directory`."""
    job_memory: Annotated[ByteSize, Field(ge=1 << 28)] | None = None
    """The most private memory that a job's process may take, as 4GiB; a job that wants more fails. What the machine
    has, or its container may take, where left out."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Where to serve Prometheus metrics over HTTP; 0 takes any free port; nowhere where left out."""
    metrics_host: str = "127.0.0.1"
    """The address of the metrics' port; reached from this machine alone unless set."""
    silence_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Seconds without a message after which a slot counts as lost. A weft server sets it for its jobs."""
    alive_file: Path | None = None
    """A file that is touched at every heartbeat while the daemon works: a probe sees by its age that it hangs."""
    exit_with_parent: bool = False
    """Whether to end when standard input closes."""

    @field_validator("bind")
    @classmethod
    def _has_a_port(cls, bind: str | None) -> str | None:
        endpoints_of(bind or "")
        return bind

    @model_validator(mode="after")
    def _one_source(self) -> ShardSettings:
        if (self.server is None) == (self.description is None):
            raise ValueError("give either --server URL, to serve a weft server's jobs, or --description FILE --shard N")
        for one, other in (("description", "shard"), ("table_directory", "table_memory")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                options = " and ".join(f"--{name.replace('_', '-')}" for name in (one, other))
                raise ValueError(f"{options} belong together")
        if self.curve_keys is not None and self.server is not None:
            raise ValueError("--curve-keys belongs to --description: a weft server makes keys for each job itself")
        if self.curve_clients is not None and self.curve_keys is None:
            raise ValueError("--curve-clients needs --curve-keys: without keys of its own the shard accepts everybody")
        return self

    @property
    def tables(self) -> TablePlace | None:
        if self.table_directory is None or self.table_memory is None:
            return None
        return TablePlace(self.table_directory, self.table_memory)


# --- One child for each job that a server hands out -------------------------------------------------------------------


CHILD: Final = "weft_kvstore.serving.shard_process"
"""What the forkserver imports; the daemon itself does without."""

_log = logging.getLogger("weft.shard")


class ShardDaemon:
    """One child for each job's shard. Its metrics are those of all children, also of those that have ended."""

    def __init__(self, settings: ShardSettings, *, join: Join | None = None) -> None:
        from weft.agent.daemon import AgentDaemon  # A shard of a store that is used alone does without.
        from weft.api.agent import AgentKind, Registration

        self._settings = settings
        self._lock = threading.Lock()
        self._latest: dict[Lease, dict[str, float]] = {}
        """The newest statistics of each child that lives."""
        self._ended: dict[str, float] = {}
        """What children that have ended had counted."""
        forkserver = Forkserver(CHILD)
        forkserver.start()
        most = settings.job_memory or memory_bytes()
        registration = Registration(kind=AgentKind.SHARD, name=settings.name, pid=os.getpid(), job_memory_bytes=most)
        self._daemon = AgentDaemon(settings, registration, forkserver, self._task, heard=self._heard, join=join)

    def run(self, stop: threading.Event) -> None:
        """Serves until `stop` is set."""
        self._daemon.run(stop)

    def statistics(self) -> dict[str, float]:
        """All children's together, as each has said them last."""
        with self._lock:
            return summed([self._ended, *self._latest.values()])

    def _task(self, allocation: AnyAllocation) -> dict[str, Any]:
        from weft.api.agent import ShardAllocation

        if not isinstance(allocation, ShardAllocation):
            raise TypeError(f"{allocation.id} is no shard's allocation")
        settings, tables = self._settings, self._settings.tables
        return {
            **allocation.model_dump(mode="json", exclude={"token"}),  # The daemon alone makes calls about it.
            "name": settings.name,
            "bind": settings.bind or ANY_PORT,
            "advertise": settings.advertise,
            "tables": None if tables is None else {**asdict(tables), "directory": str(tables.directory)},
        }

    def _heard(self, lease: Lease, line: dict[str, Any] | None) -> None:
        """Statistics of a child; None once it has ended."""
        with self._lock:
            if line is None:
                self._ended = summed([self._ended, counted(self._latest.pop(lease, {}))])
            else:
                self._latest[lease] = line["statistics"]


def serve(settings: ShardSettings) -> None:
    """Runs the daemon until a signal, or its parent's end, stops it. Raises ForkError where no child could be started,
    and StoreError where metrics cannot be served."""
    stop = start_daemon(settings.name, exit_with_parent=settings.exit_with_parent)
    daemon = ShardDaemon(settings)
    with metrics_served(settings.metrics_host, settings.metrics_port, daemon.statistics) as metrics:
        if metrics is not None:
            _log.info("metrics at %s", metrics)
        daemon.run(stop)
