"""Where the mind meets the hands: facts go to the controller, its instructions to the records, files and waiting calls.

The controller is only ever touched on the event loop. One thread writes to the records, puts uploads in their places
and deletes the files of jobs that have ended, in the order of the instructions. Queries have threads of their own, and
so have the files that uploads fill: neither waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from anyio import CapacityLimiter, to_thread

from weft.api.agent import AgentInfo, Heartbeat, Orders, Registered, Registration, Report
from weft.api.event import Event, LogLine, StateChanged
from weft.api.job import Job, JobSpec, Progress
from weft.api.lifecycle import JobState
from weft_server.bells import Bells, heard
from weft_server.controller import Controller
from weft_server.instructions import Append, Close, Instruction, Order, Save
from weft_server.job_files import JobFiles
from weft_server.journal import Journal
from weft_server.limits import Limits
from weft_server.moment import Clock, Moment
from weft_server.plan import JobPlan
from weft_server.records import Records, Submission
from weft_server.refusals import UnknownError, WrongStateError

_log = logging.getLogger("weft.server")
_T = TypeVar("_T")

TICK_INTERVAL_S = 0.2
READERS = 8
"""Threads that read from the database at the same time; the engine's pool has room for more."""
FILE_THREADS = 8
"""Threads that read and write jobs' files at the same time; more uploads take turns, piece by piece."""


class KeeperSilentError(Exception):
    """The keeper did not bring the parameters in time."""


class Service:
    """One server's state and what acts on it. `start` and `stop` are called on the loop that it serves."""

    def __init__(self, records: Records, files: JobFiles, limits: Limits, clock: Clock) -> None:
        self.records = records
        self.files = files
        self.clock = clock
        self.bells = Bells()
        self.closing = False
        self._controller = Controller(limits, _new_id)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._readers = CapacityLimiter(READERS)
        self._file_threads = CapacityLimiter(FILE_THREADS)
        self._journal = Journal(self._record, self._recorded)
        self._ticker: asyncio.Task[None] | None = None
        self._live: dict[str, tuple[Path, int]] = {}

    async def start(self) -> None:
        """Takes up what an earlier process has left, and starts the clock's ticks."""
        await self.on_files(self.files.clean)
        for kept in await self.read(self.records.unfinished):
            if kept.job.state is JobState.PENDING:
                await self._apply(self._controller.submit(kept.job, kept.plan, kept.events, self.clock()))
            else:
                await self._apply(_failed_by_restart(kept.job, kept.events, self.clock()))
        self._ticker = asyncio.create_task(self._tick(), name="ticks")

    def begin_closing(self) -> None:
        """Ends every open call that waits, so that connections can be closed."""
        self.closing = True
        self.bells.ring_all()

    async def stop(self) -> None:
        self.begin_closing()
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        await self._journal.flush()
        await asyncio.to_thread(self._writer.shutdown)

    @property
    def unready(self) -> str | None:
        """Why the server is not to be sent new work; None when it is."""
        if self._ticker is None or self._ticker.done() or self.closing:
            return "the server is starting or ending"
        if self._journal.is_refused:
            return "the records refuse what is written to them; it is tried again"
        return None

    async def read(self, query: Callable[..., _T], *args: object) -> _T:
        """Runs a query of the records on one of the threads for that."""
        return await to_thread.run_sync(query, *args, limiter=self._readers)

    async def on_files(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs what reads or writes jobs' files on one of the threads for that."""
        return await to_thread.run_sync(function, *args, limiter=self._file_threads)

    def agents(self) -> list[AgentInfo]:
        return self._controller.agents(self.clock())

    async def job(self, job: str) -> Job:
        """The job as it is now. Raises UnknownError."""
        run = self._controller.run_of(job)
        found = run.job if run is not None else self._journal.newest(job)
        return found if found is not None else await self.recorded(job)

    async def recorded(self, job: str) -> Job:
        """The job as the records hold it, with every event of its log up to there. Raises UnknownError."""
        found = await self.read(self.records.job, job)
        if found is None:
            raise UnknownError("job", job)
        return found

    async def plan(self, job: str) -> JobPlan:
        """Raises UnknownError."""
        run = self._controller.run_of(job)
        found = run.plan if run is not None else await self.read(self.records.plan, job)
        if found is None:
            raise UnknownError("job", job)
        return found

    async def submit(self, spec: JobSpec, plan: JobPlan, key: str | None, digest: str) -> Job:
        """Keeps the job, then lets it run. Raises FullError, or IntegrityError when the key was taken meanwhile."""
        self._controller.check_room()
        now = self.clock()
        job = Job(
            id=_new_id(),
            name=plan.name,
            state=JobState.PENDING,
            progress=Progress(steps=plan.steps),
            workers=plan.workers,
            shards=plan.shards,
            created_at=now.at,
        )
        first = Event(seq=1, at=now.at, body=StateChanged(state=JobState.PENDING))
        await self._on_writer(
            self.records.add, Submission(job, spec.model_dump_json(by_alias=True), plan, first, key, digest)
        )
        await self._apply(self._controller.submit(job, plan, 1, self.clock()))
        return await self.job(job.id)

    async def cancel(self, job: str) -> Job:
        """Raises UnknownError, or WrongStateError for a job that has ended otherwise. A cancelled one stays so."""
        current = await self.job(job)
        if not current.state.is_terminal and self._controller.run_of(job) is None:
            # It was kept a moment ago, and the controller has not seen it yet.
            await self._on_writer(lambda: None)
            current = await self.job(job)
        if current.state is JobState.CANCELLED:
            return current
        if current.state.is_terminal:
            raise WrongStateError(f"job {job} has {current.state}: it cannot be cancelled")
        if self._controller.run_of(job) is None:
            raise WrongStateError(f"job {job} is {current.state} and not in the scheduler's hands yet: cancel it again")
        await self._apply(self._controller.cancel(job, self.clock()))
        return await self.job(job)

    async def register(self, registration: Registration) -> Registered:
        registered, instructions = self._controller.register(registration, self.clock())
        _log.info("agent %s registered as %s (pid %d)", registered.id, registration.name, registration.pid)
        await self._apply(instructions)
        return registered

    async def leave(self, agent: str) -> None:
        await self._apply(self._controller.leave(agent, self.clock()))

    async def heartbeat(self, agent: str, heartbeat: Heartbeat) -> Orders:
        """The agent's orders, at once when they are newer than it knows, else after its wait. Raises UnknownError."""
        now = self.clock()
        self._controller.heard(agent, now)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(heartbeat.wait_s, self._controller.limits.lost_after_s / 2)
        while True:
            bell = self.bells.listen(_agent_bell(agent))
            orders = self._controller.orders(agent)
            remaining = deadline - loop.time()
            if orders.version != heartbeat.known or remaining <= 0 or self.closing:
                return orders
            await heard(bell, remaining)

    async def report(self, allocation: str, report: Report) -> None:
        await self._apply(self._controller.report(allocation, report, self.clock()))

    def check_parameters(self, allocation: str, term: int, step: int, final: bool) -> tuple[str, JobPlan]:
        """(job, plan) that an upload is for; raises a RefusalError when it is not wanted."""
        run = self._controller.check_parameters(allocation, term, step, final)
        return run.job.id, run.plan

    async def keep(self, allocation: str, term: int, step: int, final: bool, place: Callable[[], Path]) -> None:
        """Puts an upload in its place and goes on. Raises a RefusalError when it has come too late."""
        run = self._controller.check_parameters(allocation, term, step, final)
        path = await self._on_writer(place)
        instructions = self._controller.keep(allocation, term, step, final, self.clock())
        if not final:
            self._live[run.job.id] = (path, step)
        self.bells.ring(_values_bell(run.job.id))
        await self._apply(instructions)

    async def live_values(self, job: str, timeout_s: float) -> tuple[Path, int]:
        """Values of a running job, asked for now: (file, step). Raises KeeperSilentError or a RefusalError."""
        keeper, instructions = self._controller.want_parameters(job)
        await self._apply(instructions)
        before = self._live.get(job)
        bell = self.bells.listen(_values_bell(job))
        if self._live.get(job) is before and not await heard(bell, timeout_s):
            await self._apply(self._controller.forget_parameters(keeper))
            raise KeeperSilentError(
                f"{keeper.who}, the keeper, did not bring the parameters within {timeout_s:g} s; "
                f"it is at step {keeper.step}"
            )
        brought = self._live.get(job)
        if brought is None or brought is before:
            raise WrongStateError(f"job {job} is {(await self.job(job)).state}: it has ended meanwhile")
        return brought

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_INTERVAL_S)
            try:
                await self._apply(self._controller.tick(self.clock()))
            except Exception:  # noqa: BLE001  # the task's outermost frame: a server without ticks would lose nobody
                _log.exception("a tick failed; the next one goes on from what it has left")

    async def _apply(self, instructions: Sequence[Instruction]) -> None:
        """Carries instructions out: orders at once, the rest through the journal. Never raises for the records."""
        for each in instructions:
            if isinstance(each, Order):
                self.bells.ring(_agent_bell(each.agent))
            elif isinstance(each, Append):
                _log_event(each)
        await self._journal.carry_out(instructions)

    async def _record(self, instructions: Sequence[Instruction]) -> None:
        await self._on_writer(self.records.carry_out, instructions)

    async def _recorded(self, instructions: Sequence[Instruction]) -> None:
        """The records have these: whoever waits for them is woken, and what has ended is tidied up."""
        for job in {each.job for each in instructions if isinstance(each, Append)}:
            self.bells.ring(job_bell(job))
        for each in instructions:
            if isinstance(each, Close):
                await self._close(each.job, each.succeeded)

    async def _close(self, job: str, succeeded: bool) -> None:
        self._live.pop(job, None)
        try:
            await self._on_writer(self.files.end, job, succeeded)
        except OSError as error:
            _log.warning("files of job %s, which has ended, are left: %s", job, error)
        self.bells.ring(_values_bell(job))
        self.bells.ring(job_bell(job))

    async def _on_writer(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs on the one thread that writes. Shielded: a caller that goes away takes nothing half-done with it."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._writer, function, *args))


def job_bell(job: str) -> str:
    """Rings when the job's log has grown."""
    return f"job/{job}"


def _values_bell(job: str) -> str:
    return f"values/{job}"


def _agent_bell(agent: str) -> str:
    return f"agent/{agent}"


def _new_id() -> str:
    return uuid4().hex[:16]


def _failed_by_restart(job: Job, events: int, now: Moment) -> list[Instruction]:
    """What ends a job that ran when an earlier process of the server ended: nobody holds its leases any more."""
    reason = f"the server was restarted while the job was {job.state}, {_place(job)}"
    ended = job.model_copy(update={"state": JobState.FAILED, "reason": reason, "ended_at": now.at})
    body = StateChanged(state=JobState.FAILED, reason=reason)
    return [Append(job.id, Event(seq=events + 1, at=now.at, body=body)), Save(ended), Close(job.id, succeeded=False)]


def _place(job: Job) -> str:
    return f"at step {job.progress.step} of {job.progress.steps}"


def _log_event(entry: Append) -> None:
    body = entry.event.body
    if isinstance(body, StateChanged):
        _log.info("job %s is %s%s", entry.job, body.state, f": {body.reason}" if body.reason else "")
    elif isinstance(body, LogLine) and body.level in {"warning", "error"}:
        _log.warning("job %s: %s: %s", entry.job, body.source, body.message)
