"""What the control plane goes by: times, and how much it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.api.agent import LOST_AFTER_S


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long a job may take from one state to the next, in seconds."""

    start_s: float = 60.0
    """From placed to started: enough to load programs and make first values."""
    keep_s: float = 300.0
    """From trained to kept: enough to pull and bring some gigabytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, and how much is held."""

    heartbeat_interval_s: float = 1.0
    suspected_after_s: float = 5.0
    """Five missed heartbeats: a busy machine is not a silent one."""
    lost_after_s: float = LOST_AFTER_S
    """How long a silent agent is waited for: it may be frozen or cut off, and what it holds is not lost then."""
    restart_grace_s: float = 10.0
    """From the server's start until the silence of agents that it knew before counts: they try again each second, and
    a machine that starts everything at once is slow."""
    job: TimeLimits = field(default_factory=TimeLimits)
    most_jobs: int = 1000
    """Jobs that have not ended: their plans, constants included, are in memory, and each is looked at in every tick."""
    most_agents: int = 4096
    """The workers and shards of a few of the largest jobs."""
    snapshots: str | None = None
    """Where jobs' snapshots are kept, a folder or a URL; None: there are none."""

    ended_s: float | None = None
    """How long jobs are kept after their end; None: until they are removed."""
    ended_bytes: int | None = None
    """Most that all jobs that have ended take; None: any number."""

    @property
    def most_jobs_of_project(self) -> int:
        """A quarter is left to others."""
        return self.most_jobs - self.most_jobs // 4

    @property
    def late_after_s(self) -> float:
        """From here on an agent's silence may be what another agent's failure comes from."""
        return 2 * self.heartbeat_interval_s
