"""The worker daemon: carries out what the worker's mind decides."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from queue import SimpleQueue

from weft.api.agent import AgentKind, Orders, Registration, WorkerAllocation
from weft.api.alive import AliveFile, Question
from weft.api.lifecycle import AllocationEvent
from weft.api.membership import Join, joining
from weft.api.reporter import Reporter
from weft_worker.run import Listener, Run
from weft_worker.settings import WorkerSettings
from weft_worker.state import (
    Ended,
    Exit,
    Forget,
    Instruction,
    Lease,
    Lost,
    Ordered,
    Reached,
    RequestSet,
    RequestUpload,
    StartRun,
    Stimulus,
    StopRun,
    Tell,
    Terminate,
    WorkerState,
    lease_of,
)

EXIT_DEADLINE_S = 4.0
"""For a run to end once the daemon is to; below the grace that a daemon has after its parent's end."""
FLUSH_S = 0.5
LEAVE_S = 0.5

_log = logging.getLogger("weft.worker")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Put in the queue by whoever wants to know whether it is handled."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A run and its way to the server."""

    run: Run
    reporter: Reporter


class WorkerDaemon:
    """Hands around the mind: one queue of stimuli, handled on the thread that calls `run`."""

    def __init__(self, settings: WorkerSettings, *, join: Join | None = None) -> None:
        self._settings = settings
        self._state = WorkerState()
        self._stimuli: SimpleQueue[Stimulus | _Asked | None] = SimpleQueue()
        self._carried: dict[Lease, Carried] = {}
        registration = Registration(kind=AgentKind.WORKER, name=settings.name, pid=os.getpid())
        self._question = Question(lambda: self._stimuli.put(_Asked()))
        alive = AliveFile(settings.alive_file, self._question.lives) if settings.alive_file is not None else None
        join = join or joining(settings.server, token=settings.token, alive=alive)
        self._members = join(registration, _Orders(self._stimuli))

    def run(self, stop: threading.Event) -> None:
        """Works for the server until `stop` is set and what ran then has ended, or could not within a few seconds."""
        threads = [
            threading.Thread(target=self._members.run, args=(stop,), name="membership", daemon=True),
            threading.Thread(target=self._await, args=(stop,), name="await-stop", daemon=True),
        ]
        for thread in threads:
            thread.start()
        while (stimulus := self._stimuli.get()) is not None:
            if isinstance(stimulus, _Asked):
                self._question.answer()
            elif self._carry_out_all(self._state.handle(stimulus)):
                break
        else:
            _log.error("%s did not end within %g s and is left", ", ".join(map(str, self._carried)), EXIT_DEADLINE_S)
        for carried in self._carried.values():
            carried.reporter.flush(FLUSH_S)
            carried.reporter.close()
        threads[0].join(LEAVE_S)
        if not threads[0].is_alive():
            self._members.close()

    def _await(self, stop: threading.Event) -> None:
        stop.wait()
        self._stimuli.put(Terminate())
        threading.Event().wait(EXIT_DEADLINE_S)
        self._stimuli.put(None)

    def _carry_out_all(self, instructions: list[Instruction]) -> bool:
        """Whether the daemon is to end."""
        for instruction in instructions:
            self._carry_out(instruction)
        return Exit() in instructions

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case StartRun(allocation):
                self._start(allocation)
            case StopRun(lease):
                _log.info("allocation %s is stopped", lease)
                self._carried[lease].run.stop()
            case RequestUpload(lease):
                self._carried[lease].run.request_upload()
            case RequestSet(lease, number):
                self._carried[lease].run.request_set(number)
            case Tell(lease, event, reason):
                _log.log(logging.ERROR if reason else logging.INFO, "allocation %s: %s %s", lease, event, reason or "")
                self._carried[lease].reporter.report(event=event, reason=reason)
            case Forget(lease):
                self._carried.pop(lease).reporter.close()
            case Exit():
                _log.info("no run is left")

    def _start(self, allocation: WorkerAllocation) -> None:
        lease = lease_of(allocation)
        _log.info("allocation %s: slot %d of job %s", lease, allocation.slot, allocation.job)
        reporter = self._members.reporter(lease.id, lease.term)
        listener: Listener = _Facts(lease, self._stimuli)
        settings = self._settings
        run = Run(allocation, reporter, listener, settings, data_roots=settings.data_roots)
        self._carried[lease] = Carried(run, reporter)
        run.start()


@dataclass(frozen=True, slots=True)
class _Orders:
    """The membership's side: orders become stimuli."""

    stimuli: SimpleQueue[Stimulus | _Asked | None]

    def hold(self, orders: Orders) -> None:
        self.stimuli.put(Ordered(orders))

    def lost(self) -> None:
        self.stimuli.put(Lost())


@dataclass(frozen=True, slots=True)
class _Facts:
    """A run's side: facts become stimuli."""

    lease: Lease
    stimuli: SimpleQueue[Stimulus | _Asked | None]

    def reached(self, event: AllocationEvent, reason: str | None) -> None:
        self.stimuli.put(Reached(self.lease, event, reason))

    def ended(self) -> None:
        self.stimuli.put(Ended(self.lease))
