"""Looking after a cluster on this machine: what ends is started again, soon at first, later each time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from weft.cluster import SERVER, Cluster
from weft.command_line import command
from weft.errors import ClusterError
from weft.http import Retry
from weft.process import Process


@dataclass(frozen=True, slots=True)
class RevivalLimits:
    """How often and how soon daemons are started again."""

    first_s: float = 0.5
    """The pause before the first start; each further one of a row doubles it."""
    longest_s: float = 10.0
    most: int = 5
    """Starts in a row; a daemon that ends once more is not started again."""
    healthy_s: float = 60.0
    """A life as long as this ends a row."""


DEFAULT_LIMITS = RevivalLimits()


class Revivals:
    """Counts the deaths of each daemon, by name.

    Invariant: `_due` has when a daemon that ended is to be started; one that runs, or ended too often, is not in it.
    """

    def __init__(self, limits: RevivalLimits = DEFAULT_LIMITS, always: Collection[str] = ()) -> None:
        """Daemons of `always` are started again however often they end."""
        self.limits = limits
        self._always = always
        self._rows: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def died(self, name: str, lived_s: float, now: float) -> float | None:
        """The daemon ended after `lived_s`. The pause until it is to be started again; None where it is not."""
        row = 1 if lived_s >= self.limits.healthy_s else self._rows.get(name, 0) + 1
        self._rows[name] = row
        if row > self.limits.most and name not in self._always:
            return None
        pause_s = Retry(first_s=self.limits.first_s, longest_s=self.limits.longest_s).pause_s(row)
        self._due[name] = now + pause_s
        return pause_s

    def row(self, name: str) -> int:
        """How often in a row it has ended."""
        return self._rows.get(name, 0)

    def due(self, now: float) -> list[str]:
        """Daemons that are to be started now, each told once."""
        ready = [name for name, at in self._due.items() if at <= now]
        for name in ready:
            del self._due[name]
        return ready


LOG_LINES = 1
"""Of what an ended daemon wrote; the rest is in its log."""

LOST = f"""\
Jobs go on: another worker takes the place of one that ended, and after a shard they go on from their newest snapshot.
See how they do: {command("jobs")}"""

DELETED = "It is made again, and jobs go on; results, snapshots and logs that were in it are gone"

AWAY = "Meanwhile running jobs train on; no job starts, and none ends"


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened to a daemon, for people. `is_bad`: one ended. Lines of its log are set in."""

    text: str
    is_bad: bool = False


class Tending:
    """Starts the daemons of a started cluster again: the server on its port and data, agents under their names.

    Jobs go on over an absence of the server, so it is tried for ever: its disk may have room again, its database be put
    back. An agent that ends again and again is let go, and the others go on.
    """

    def __init__(
        self, cluster: Cluster, limits: RevivalLimits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._revivals = Revivals(limits, always=(SERVER,))
        self._clock = clock
        self._awaited: Process | None = None
        self._not_held = ""
        """Why the directory is not this cluster's, as it was told."""

    def look(self) -> list[Told]:
        """Starts what is due, and tells what happened since the last look. To be called a few times a second."""
        told = self._held()
        told += [told for process in self._cluster.ended() for told in self._mourned(process)]
        for name in self._revivals.due(self._clock()):
            told += self._started(name)
        if self._awaited is not None and self._cluster.listens():
            self._awaited = None
            told.append(Told(f"the server listens again at {self._cluster.url}"))
        return told

    def _held(self) -> list[Told]:
        """What is told of a directory that was deleted. One that another cluster took is taken when that has ended."""
        before = self._not_held
        try:
            is_made, self._not_held = self._cluster.hold_directory(), ""
        except (ClusterError, OSError) as error:
            self._not_held = str(error)
            if self._not_held == before:
                return []
            text = f"the directory {self._cluster.directory} was deleted, and cannot be made again: {error}. Jobs go on"
            return [Told(f"{text}; `kill {os.getpid()}` ends this cluster", is_bad=True)]
        return [Told(f"the directory {self._cluster.directory} was deleted. {DELETED}", is_bad=True)] if is_made else []

    def _mourned(self, process: Process) -> list[Told]:
        pause_s = self._revivals.died(process.name, process.lived_s, self._clock())
        return self._ended(process.name, process.notice_of_death(LOG_LINES), pause_s)

    def _ended(self, name: str, how: str, pause_s: float | None) -> list[Told]:
        """What is told of an end; of a long row of them every second, fourth, eighth ... one."""
        limits, row = self._revivals.limits, self._revivals.row(name)
        often = f"{name} has ended {row} times in a row, within {limits.healthy_s:g} s of its start"
        if pause_s is None:
            return [Told(f"{how}\n{often}, and is not started again; the others go on", is_bad=True)]
        if name != SERVER:
            return [Told(f"{how}\n{name} is started again in {pause_s:g} s. {LOST}", is_bad=True)]
        if row <= limits.most:
            so_often = f"{name} has ended {row} times in a row; it" if row > 1 else name
            text = f"{how}\n{so_often} is started again on its port and data in {pause_s:g} s. {AWAY}"
            return [Told(text, is_bad=True)]
        if row & (row - 1) and row != limits.most + 1:
            return []
        text = f"{how}\n{often}. Workers and shards are kept, and so is what they compute; it is tried again each"
        return [Told(f"{text} {pause_s:g} s until it starts: mend what its log tells of", is_bad=True)]

    def _started(self, name: str) -> list[Told]:
        try:
            process = self._cluster.restart(name)
        except OSError as error:  # no memory, no more processes or no room on the disk, say: another death
            pause_s = self._revivals.died(name, 0.0, self._clock())
            return self._ended(name, f"{name} cannot be started: {error}", pause_s)
        if name == SERVER:
            self._awaited = process
            if self._revivals.row(name) > self._revivals.limits.most:
                return []  # it is told once it listens
        return [Told(f"{name} is started again as process {process.pid}")]
