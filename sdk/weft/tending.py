"""Looking after a cluster on this machine: what ends is started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from weft.cluster import SERVER, Cluster
from weft.command_line import command
from weft.errors import ClusterError
from weft.process import Process
from weft.revivals import DEFAULT_LIMITS, RevivalLimits, Revivals

LOG_LINES = 1
"""Of what an ended daemon wrote; the rest is in its log."""

LOST = f"""\
Jobs in which it held a place go on from their newest snapshot, as often as their max_restarts says.
See how they do: {command("jobs")}"""


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened to a daemon, for people. `is_bad`: one ended. Lines of its log are set in."""

    text: str
    is_bad: bool = False


class Tending:
    """Starts the daemons of a started cluster again: the server on its port and data, agents under their names.

    Jobs go on over an absence of the server. A job whose worker or shard ended fails; the next one finds its successor.
    """

    def __init__(
        self, cluster: Cluster, limits: RevivalLimits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._revivals = Revivals(limits)
        self._clock = clock
        self._awaited: Process | None = None

    def look(self) -> list[Told]:
        """Starts what is due, and tells what happened since the last look. To be called a few times a second.

        Raises ClusterError where the server ends again and again: nothing works without it.
        """
        told = [self._mourned(process) for process in self._cluster.ended()]
        for name in self._revivals.due(self._clock()):
            told.append(self._started(name))
        if self._awaited is not None and self._cluster.listens():
            self._awaited = None
            told.append(Told(f"the server listens again at {self._cluster.url}"))
        return told

    def _mourned(self, process: Process) -> Told:
        now, limits = self._clock(), self._revivals.limits
        pause_s = self._revivals.died(process.name, process.lived_s, now)
        if pause_s is not None:
            ended = process.notice_of_death(LOG_LINES)
            if process.name == SERVER:
                text = f"{ended}\n{process.name} is started again on its port and data in {pause_s:g} s; jobs go on"
            else:
                text = f"{ended}\n{process.name} is started again in {pause_s:g} s. {LOST}"
            return Told(text, is_bad=True)
        often = f"{process.name} has ended {limits.most + 1} times in a row, within {limits.healthy_s:g} s of its start"
        if process.name == SERVER:
            raise ClusterError(f"{process.obituary()}\n{often}: nothing works without it")
        return Told(
            f"{process.notice_of_death(LOG_LINES)}\n{often}, and is not started again; the others go on", is_bad=True
        )

    def _started(self, name: str) -> Told:
        try:
            process = self._cluster.restart(name)
        except OSError as error:  # no memory or no more processes, say: another death
            pause_s = self._revivals.died(name, 0.0, self._clock())
            if pause_s is None:
                raise ClusterError(f"{name} cannot be started: {error}") from None
            return Told(f"{name} cannot be started: {error}; tried again in {pause_s:g} s", is_bad=True)
        if name == SERVER:
            self._awaited = process
        return Told(f"{name} is started again as process {process.pid}")
