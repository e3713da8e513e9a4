"""The worker's daemon: registers with a server, and has a child process for the job's slot that it is given."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from weft.agent.children import Forkserver
from weft.agent.daemon import AgentDaemon
from weft.agent.machine import memory_bytes
from weft.agent.membership import Join
from weft.agent.state import AnyAllocation
from weft.api.agent import AgentKind, Registration
from weft_worker.errors import DeviceError
from weft_worker.settings import RunSettings, WorkerSettings

CHILD: Final = "weft_worker.worker_child"
"""What the forkserver imports. Neither it nor the daemon opens a device: a fork of who has one is of no use."""

_TOLD: Final = {"name", "server", "token", "data_roots"}
"""Of the settings, what a child is told beside those of its run."""


class WorkerDaemon:
    """One child at a time, which has the device and the cores to itself."""

    def __init__(self, settings: WorkerSettings, *, join: Join | None = None) -> None:
        """Raises ForkError where no child could be started, and DeviceError where there is no such device."""
        self._settings = settings
        forkserver = Forkserver(CHILD)
        try:
            forkserver.start()
            device = self._device(forkserver)  # What is wrong is better said now than by every job.
        except BaseException:
            forkserver.close()
            raise
        most = settings.job_memory or memory_bytes() if settings.device == "cpu" else None
        registration = Registration(
            kind=AgentKind.WORKER, name=settings.name, pid=os.getpid(), job_memory_bytes=most, device=device
        )
        self._daemon = AgentDaemon(settings, registration, forkserver, self._task, at_once=1, join=join)

    def run(self, stop: threading.Event) -> None:
        """Works for the server until `stop` is set."""
        self._daemon.run(stop)

    def _task(self, allocation: AnyAllocation | None) -> dict[str, Any]:
        told = self._settings.model_dump(mode="json", include=_TOLD)
        if allocation is not None and allocation.token is not None:
            told["token"] = allocation.token  # The token that agents join with is no business of a job's process.
        return {
            **told,
            "settings": self._settings.model_dump(mode="json", include=set(RunSettings.model_fields)),
            "allocation": None if allocation is None else allocation.model_dump(mode="json"),
        }

    def _device(self, forkserver: Forkserver) -> str:
        """The device's title. Asks a child, which ends then. Raises DeviceError."""
        if self._settings.device == "cpu":
            return "cpu"
        child = forkserver.fork()
        child.send(self._task(None))
        said = list(child.lines())
        if said and "title" in said[0]:
            return str(said[0]["title"])
        raise DeviceError(
            said[0]["fault"] if said else f"device {self._settings.device!r} cannot be tried: {child.ending}"
        )
