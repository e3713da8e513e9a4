"""How a server is set up: `WEFT_SERVER_*` in the environment, overridden by the command line."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weft.agent.children import ProcessLimits
from weft.agent.machine import memory_bytes
from weft.api.agent import LOST_AFTER_S
from weft_server.control.limits import Limits, TimeLimits
from weft_server.planning.estimate import Bounds

FORK_FILES = 256
"""Files that a process may have open which checks a job or reads a model."""
FORK_NICE = 5
"""It is below the server, and below jobs that run."""


class Settings(BaseSettings):
    """A server's settings; frozen."""

    model_config = SettingsConfigDict(env_prefix="WEFT_SERVER_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Address to bind to. One that is not loopback needs a token."""
    port: int = Field(default=8470, ge=0, le=65535)
    """0 takes a free one; `server.json` says which."""
    directory: Path = Path("weft-server")
    """Where the database, the jobs' files and `server.json` are kept."""
    snapshots: str | None = None
    """Where jobs' snapshots are kept: a folder that the server, shards and workers reach by this path, or a URL that
    fsspec reads (`s3://bucket/weft`). If left out, `snapshots` in the directory; empty: there are none."""
    data_roots: tuple[Path, ...] = ()
    """Directories that data may be read from. None given: any on loopback, else none at all."""
    token: SecretStr | None = None
    """What clients send as `Authorization: Bearer`."""
    agent_token: SecretStr | None = None
    """What agents register with, as their own token; each has a credential of its own from then on. If left out, they
    register with the users' token."""
    encrypt_links: bool | None = None
    """Whether each job gets CURVE keys of its own, by which nobody but its workers can talk to its shards, and what
    passes is secret. If left out, where the server can be reached from elsewhere: encryption takes processor time."""
    exit_with_parent: bool = False
    """End when standard input closes, a pipe that the parent holds."""

    heartbeat_interval_s: float = Field(default=1.0, gt=0, le=10)
    """How often workers and shards call the server."""
    suspected_after_s: float = Field(default=5.0, gt=0)
    """Silence after which an agent is suspected: it is given nothing new. Five heartbeats, since a busy machine is not
    silent. One whose process is seen to end is lost after this time at the latest."""
    lost_after_s: float = Field(default=LOST_AFTER_S, gt=0)
    """How long a silent agent is waited for, and a silent process of a job by the others: what is frozen or cut off and
    comes back in time has lost nothing."""
    restart_grace_s: float = Field(default=10.0, ge=0)
    """From the server's start until the silence of agents that it knew before counts."""
    start_deadline_s: float = Field(default=60.0, gt=0)
    """How long a job may take from being placed to its first step."""
    keep_deadline_s: float = Field(default=300.0, gt=0)
    """How long the final parameters may take from the last step to the server's disk."""
    values_deadline_s: float = Field(default=30.0, gt=0)
    """How long a request that reads or sets a running job's values waits for the keeper."""

    job_bytes: int = Field(default=16 << 20, gt=0)
    """Largest body of a submitted job: a graph carries its constants."""
    job_nodes: int = Field(default=100_000, gt=0)
    """Most nodes of a submitted graph."""
    submitted_bytes: int = Field(default=256 << 20, gt=0)
    """Most that the bodies of submitted jobs take together while they come, wait and are checked. One user's take half
    of it, one project's three quarters; one alone is always taken."""
    report_bytes: int = Field(default=8 << 20, gt=0)
    """Largest body that an agent sends: a thousand metrics and log lines. All other calls take 64 KiB."""
    most_connections: int = Field(default=16384, ge=1)
    """Connections at the same time, three for each of `most_agents`; fewer where the process may open fewer files. One
    more takes the place of the one that has waited longest without a request."""
    head_s: float = Field(default=10.0, gt=0)
    """How long a request's head may take to come, from the connection's beginning or its own first byte."""
    body_grace_s: float = Field(default=30.0, gt=0)
    """How long a body may stand still before its call is refused."""
    upload_bytes: int = Field(default=64 << 30, gt=0)
    """Largest document of values brought for jobs to begin with."""
    uploads_bytes: int = Field(default=256 << 30, gt=0)
    """Most that all of them take together; more are refused until some expire or are deleted."""
    upload_hours: float = Field(default=6.0, gt=0)
    """How long such a document is kept; a job that was submitted with it has a copy."""
    ended_days: float | None = Field(default=None, gt=0)
    """How long a job is kept after its end, with its result, snapshot and first values. If left out, until somebody
    removes it."""
    ended_bytes: int | None = Field(default=None, ge=0)
    """Most that all jobs that have ended may take: those that ended first are removed. If left out, there is no
    limit."""
    parameter_bytes: int = Field(default=64 << 30, gt=0)
    """Most that one job's parameters may take with their optimizer's state."""
    step_bytes: int = Field(default=64 << 30, gt=0)
    """Most that a worker's values of one step may take."""
    machine_bytes: int | None = Field(default=None, gt=0)
    """Memory of the machine where all workers and shards run on one. If left out, this one's where the server is bound
    to loopback, else no bound: workers and shards have machines of their own, and bounds by their `--job-memory`."""
    most_jobs: int = Field(default=1000, ge=1)
    """Jobs that have not ended; their plans are held in memory, constants included."""
    concurrent_checks: int = Field(default=3, ge=1)
    """Submitted jobs that are checked at the same time, each on a thread, or in a process of its own where it has more
    than 64 KiB or a thread is stuck; a project has all but one of these, a user all but two."""
    check_memory_bytes: int = Field(default=4 << 30, ge=256 << 20)
    """Memory of such a process."""
    check_seconds: float = Field(default=60.0, gt=0)
    """How long checking one may take."""
    waiting_checks: int = Field(default=64, ge=1)
    """Of those that wait; more are sent away for a moment."""

    model_bytes: int = Field(default=256 << 20, gt=0)
    """Largest ONNX file, or archive of one; larger models are read by the SDK, which sends graph and values."""
    model_memory_bytes: int = Field(default=1 << 30, ge=256 << 20)
    """Private memory of the process that reads it; it has about 60 MiB before it begins."""
    model_seconds: float = Field(default=30.0, gt=0, le=600)
    """How long reading a file may take: the others wait meanwhile."""
    concurrent_models: int = Field(default=1, ge=1)
    """Files that are read at the same time, each in a process of its own; more wait."""
    waiting_models: int = Field(default=16, ge=1)
    """Of those that wait; more are sent away for a moment, before their body is read."""
    models_bytes: int = Field(default=1 << 30, gt=0)
    """Most that the bodies of models take together while they come, wait and are read; one alone is always taken."""
    model_body_s: float = Field(default=600.0, gt=0)
    """How long such a body may take to come."""

    @model_validator(mode="after")
    def _guarded(self) -> Settings:
        if not self.is_loopback and self.token is None:
            raise ValueError(
                f"{self.host} can be reached from elsewhere: give a token (WEFT_SERVER_TOKEN), or bind to 127.0.0.1"
            )
        if self.agent_token is not None and self.token is None:
            raise ValueError("agent_token: without a users' token nobody is asked for one; give both")
        if any(each is not None and len(each.get_secret_value()) < 16 for each in (self.token, self.agent_token)):
            raise ValueError("a token has at least 16 characters")
        for name in ("suspected_after_s", "lost_after_s"):
            if getattr(self, name) < 2 * self.heartbeat_interval_s:
                told = f"less than two heartbeats of {self.heartbeat_interval_s:g} s"
                raise ValueError(f"{name} {getattr(self, name):g} is {told}")
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name of this machine: whatever it resolves to, others may reach it

    @property
    def encrypts(self) -> bool:
        """Whether jobs get CURVE keys."""
        return not self.is_loopback if self.encrypt_links is None else self.encrypt_links

    @property
    def readable(self) -> tuple[Path, ...] | None:
        """Roots that data may be read under; None for anywhere."""
        return self.data_roots or (None if self.is_loopback else ())

    @property
    def limits(self) -> Limits:
        return Limits(
            heartbeat_interval_s=self.heartbeat_interval_s,
            suspected_after_s=self.suspected_after_s,
            lost_after_s=self.lost_after_s,
            restart_grace_s=self.restart_grace_s,
            most_jobs=self.most_jobs,
            snapshots=self.snapshots_location,
            ended_s=None if self.ended_days is None else self.ended_days * 86400,
            ended_bytes=self.ended_bytes,
            job=TimeLimits(start_s=self.start_deadline_s, keep_s=self.keep_deadline_s),
        )

    @property
    def snapshots_location(self) -> str | None:
        """Where snapshots are kept; None for nowhere."""
        if self.snapshots is None:
            return str((self.directory / "snapshots").absolute())
        return self.snapshots.rstrip("/") or None

    @property
    def models_folder(self) -> Path:
        """Where models lie while they are read."""
        return self.directory / "models"

    @property
    def check_limits(self) -> ProcessLimits:
        """Of the process that checks a large job, which writes no file."""
        return ProcessLimits(
            self.check_memory_bytes, self.check_seconds, file_bytes=0, open_files=FORK_FILES, nice=FORK_NICE
        )

    @property
    def model_file_bytes(self) -> int:
        """Of a model's values, with what the format adds."""
        return self.model_bytes + (64 << 20)

    @property
    def model_limits(self) -> ProcessLimits:
        """Of the process that reads a model."""
        return ProcessLimits(
            self.model_memory_bytes,
            self.model_seconds,
            file_bytes=self.model_file_bytes,
            open_files=FORK_FILES,
            network=False,
            nice=FORK_NICE,
        )

    @property
    def bounds(self) -> Bounds:
        machine = self.machine_bytes or (memory_bytes() if self.is_loopback else None)
        return Bounds(parameter_bytes=self.parameter_bytes, step_bytes=self.step_bytes, machine_bytes=machine)
