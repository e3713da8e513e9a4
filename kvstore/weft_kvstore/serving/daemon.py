"""The shard's daemon: registers with a server, and has a child process for each job's shard that it is given."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import asdict
from typing import Any, Final

from weft.agent.children import Forkserver
from weft.agent.daemon import AgentDaemon
from weft.agent.machine import memory_bytes
from weft.agent.membership import Join
from weft.agent.startup import start_daemon
from weft.agent.state import AnyAllocation, Lease
from weft.api.agent import AgentKind, Registration, ShardAllocation
from weft_kvstore.serving.metrics import metrics_served
from weft_kvstore.serving.shard_settings import ANY_PORT, ShardSettings
from weft_kvstore.statistics import NO_STATISTICS, ShardStatistics, counted, statistics_of, summed

CHILD: Final = "weft_kvstore.serving.shard_child"
"""What the forkserver imports; the daemon itself does without."""

ANSWER_S: Final = 1.0
"""For a child to tell its statistics: one that computes without end may keep the interpreter to itself."""

_log = logging.getLogger("weft.shard")


class ShardDaemon:
    """One child for each job's shard. Its metrics are those of all children, also of those that have ended."""

    def __init__(self, settings: ShardSettings, *, join: Join | None = None) -> None:
        self._settings = settings
        self._answered = threading.Condition()
        self._asked = 0
        self._waiting: set[Lease] = set()
        """Of whom no answer to the last question has come."""
        self._last: dict[Lease, ShardStatistics] = {}
        """By child that lives, what it has told last."""
        self._gone = NO_STATISTICS
        """What was counted by those that have ended."""
        forkserver = Forkserver(CHILD)
        forkserver.start()
        most = settings.job_memory or memory_bytes()
        registration = Registration(kind=AgentKind.SHARD, name=settings.name, pid=os.getpid(), job_memory_bytes=most)
        self._daemon = AgentDaemon(settings, registration, forkserver, self._task, heard=self._heard, join=join)

    def run(self, stop: threading.Event) -> None:
        """Serves until `stop` is set."""
        self._daemon.run(stop)

    def statistics(self) -> ShardStatistics:
        """All children's together, of this moment; of one that does not answer soon, what it has told last."""
        with self._answered:
            self._asked += 1
            self._waiting = set(self._daemon.ask({"asked": self._asked}))
            self._answered.wait_for(lambda: not self._waiting, ANSWER_S)
            return summed([self._gone, *self._last.values()])

    def _task(self, allocation: AnyAllocation) -> dict[str, Any]:
        if not isinstance(allocation, ShardAllocation):
            raise TypeError(f"{allocation.id} is no shard's allocation")
        settings = self._settings
        tables = settings.tables
        return {
            "name": settings.name,
            "store": allocation.store.model_dump(mode="json"),
            "shard": allocation.shard,
            "bind": settings.bind or ANY_PORT,
            "advertise": settings.advertise,
            "link": {**asdict(settings.link), "silence_s": allocation.lost_after_s},
            "apply_threads": settings.apply_threads,
            "curve": None if allocation.curve is None else allocation.curve.model_dump(),
            "curve_clients": allocation.curve_clients,
            "snapshot": None if allocation.snapshot is None else allocation.snapshot.model_dump(mode="json"),
            "keep_previous": allocation.keep_previous,
            "trace_first_step": allocation.trace.first_step,
            "trace_steps": allocation.trace.steps,
            "tables": None if tables is None else {**asdict(tables), "directory": str(tables.directory)},
        }

    def _heard(self, lease: Lease, line: dict[str, Any] | None) -> None:
        """Statistics of a child; None once it has ended."""
        with self._answered:
            if line is None:
                self._gone = summed([self._gone, counted(self._last.pop(lease, NO_STATISTICS))])
            elif "statistics" in line:
                self._last[lease] = statistics_of(line)
            if line is None or line.get("asked") == self._asked:
                self._waiting.discard(lease)
                self._answered.notify_all()


def serve(settings: ShardSettings) -> None:
    """Runs the daemon until a signal, or its parent's end, stops it. Raises ForkError where no child could be started,
    and StoreError where metrics cannot be served."""
    stop = start_daemon(settings.name, exit_with_parent=settings.exit_with_parent)
    daemon = ShardDaemon(settings)
    with metrics_served(settings.metrics_host, settings.metrics_port, daemon.statistics) as metrics:
        if metrics is not None:
            _log.info("metrics at %s", metrics)
        daemon.run(stop)
