"""Restarts the daemons of a cluster on this machine that end, soon at first, later each time."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from weft.cluster import SERVER, Cluster
from weft.command_line import command
from weft.errors import ClusterError
from weft.http import Retry

RESTARTS: Final = Retry(attempts=5, first_s=0.5, longest_s=10.0)
"""How often in a row a daemon is restarted, and after which pauses."""
HEALTHY_S: Final = 60.0
"""A daemon that has run for so long begins a new row."""
LOG_LINES: Final = 1
"""Of what an ended daemon wrote; the rest is in its log."""

LOST = f"""\
Jobs go on: another worker takes the place of one that ended, and after a shard they go on from their newest snapshot.
See how they do: {command("jobs")}"""

DELETED = "It is made again, and jobs go on; results, snapshots and logs that were in it are gone"

AWAY = "Meanwhile running jobs train on; no job starts, and none ends"


class Restarts:
    """Counts how often in a row each daemon has ended, by name.

    Invariant: `_due` has when a daemon that ended is to be started; one that runs, or ended too often, is not in it.
    """

    def __init__(self, retry: Retry = RESTARTS, always: Collection[str] = ()) -> None:
        """Daemons of `always` are restarted however often they end."""
        self.retry = retry
        self.row: Counter[str] = Counter()
        self._always = always
        self._due: dict[str, float] = {}

    def ended(self, name: str, ran_s: float, now: float) -> float | None:
        """The daemon ended after `ran_s`. The pause until it is to be restarted; None where it is not."""
        self.row[name] = 1 if ran_s >= HEALTHY_S else self.row[name] + 1
        if self.row[name] > self.retry.attempts and name not in self._always:
            return None
        pause_s = self.retry.pause_s(self.row[name])
        self._due[name] = now + pause_s
        return pause_s

    def due(self, now: float) -> list[str]:
        """Daemons that are to be started now, each once."""
        ready = [name for name, at in self._due.items() if at <= now]
        for name in ready:
            del self._due[name]
        return ready


class Message(NamedTuple):
    """Something that happened to a daemon, for people. Lines of its log are set in."""

    text: str
    is_error: bool = False


class Supervisor:
    """Restarts the daemons of a started cluster: the server on its port and data, agents under their names.

    Jobs go on over an absence of the server, so it is tried for ever: its disk may have room again, its database be put
    back. An agent that ends again and again is given up, and the others go on.
    """

    def __init__(self, cluster: Cluster, retry: Retry = RESTARTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._restarts = Restarts(retry, always=(SERVER,))
        self._clock = clock
        self._server_starts = False
        self._not_held = ""
        """Why the directory is not this cluster's, as it was told."""

    def poll(self) -> list[Message]:
        """Starts what is due, and says what happened since the last call. To be called a few times a second."""
        said = self._hold_directory()
        for process in self._cluster.ended():
            said += self._ended(process.name, process.notice_of_death(LOG_LINES), process.lived_s)
        for name in self._restarts.due(self._clock()):
            said += self._start(name)
        if self._server_starts and self._cluster.listens():
            self._server_starts = False
            said.append(Message(f"the server listens again at {self._cluster.url}"))
        return said

    def _hold_directory(self) -> list[Message]:
        """Makes a directory again that was deleted. One that another cluster took is taken when that has ended."""
        before = self._not_held
        try:
            is_made, self._not_held = self._cluster.hold_directory(), ""
        except (ClusterError, OSError) as error:
            self._not_held = str(error)
            if self._not_held == before:
                return []
            text = f"the directory {self._cluster.directory} was deleted, and cannot be made again: {error}. Jobs go on"
            return [Message(f"{text}; `kill {os.getpid()}` ends this cluster", is_error=True)]
        text = f"the directory {self._cluster.directory} was deleted. {DELETED}"
        return [Message(text, is_error=True)] if is_made else []

    def _ended(self, name: str, how: str, ran_s: float) -> list[Message]:
        """Says it, and has it restarted; of a long row of ends every second, fourth, eighth ... one is said."""
        pause_s = self._restarts.ended(name, ran_s, self._clock())
        row, most = self._restarts.row[name], self._restarts.retry.attempts
        often = f"{name} has ended {row} times in a row, within {HEALTHY_S:g} s of its start"
        if pause_s is None:
            text = f"{often}, and is not started again; the others go on"
        elif name != SERVER:
            text = f"{name} is started again in {pause_s:g} s. {LOST}"
        elif row <= most:
            so_often = f"{name} has ended {row} times in a row; it" if row > 1 else name
            text = f"{so_often} is started again on its port and data in {pause_s:g} s. {AWAY}"
        elif row & (row - 1) and row != most + 1:
            return []
        else:
            text = (
                f"{often}. Workers and shards are kept, and so is what they compute; it is tried again each "
                f"{pause_s:g} s until it starts: mend what its log tells of"
            )
        return [Message(f"{how}\n{text}", is_error=True)]

    def _start(self, name: str) -> list[Message]:
        try:
            process = self._cluster.restart(name)
        except OSError as error:  # no memory, no more processes or no room on the disk, say: it has ended once more
            return self._ended(name, f"{name} cannot be started: {error}", 0.0)
        if name == SERVER:
            self._server_starts = True
            if self._restarts.row[name] > self._restarts.retry.attempts:
                return []  # it is said once it listens
        return [Message(f"{name} is started again as process {process.pid}")]
