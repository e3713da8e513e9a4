"""The I/O around the controller: facts go to it, its instructions to the records, to files and to calls that wait.

The controller is only ever touched on the event loop: routes ask it, and bring facts here. What it decides is written
before anybody is told of it: calls that bring facts are answered then, agents get their orders then, and streams show
what was written. So a server that is killed at any moment and starts again knows all that it has ever said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import uuid4
from weakref import WeakValueDictionary

import zmq

from weft.api.agent import (
    Allocation,
    CurvePair,
    Heartbeat,
    Orders,
    Registered,
    Registration,
    Report,
    WorkerAllocation,
)
from weft.api.event import Event, LogLine, StateChanged
from weft.api.job import Job, Progress
from weft.api.lifecycle import JobState
from weft.api.trace import JobTrace, ProcessTrace
from weft_server.control.clock import Clock, Timestamp
from weft_server.control.controller import Controller
from weft_server.control.instructions import (
    Append,
    Close,
    Instruction,
    KeepSnapshot,
    Order,
    Save,
    SetEnded,
    TidySnapshots,
)
from weft_server.control.limits import Limits
from weft_server.control.memory import RUN, KeptJob, Scaling
from weft_server.control.snapshots import JobFolder
from weft_server.keeper_values import KeeperValues
from weft_server.notify import Notifier, notified
from weft_server.planning.plan import JobPlan
from weft_server.refusals import (
    DatabaseMovedError,
    NotKeeperError,
    NotRemovedError,
    NotWrittenError,
    RefusalError,
    UnknownError,
    ValuesDeletedError,
    WrongStateError,
)
from weft_server.storage.job_files import JobFiles
from weft_server.storage.journal import Journal
from weft_server.storage.records import Records, Submission
from weft_server.storage.snapshot_files import complete, tidy
from weft_server.threads import Threads

_log = logging.getLogger("weft.server")

TICK_INTERVAL_S = 0.2
LOOK_INTERVAL_S = 60.0
"""Between two looks at what jobs that have ended take, where the settings bound that."""
SIZES_S = 1.0
"""For the sizes of jobs' files: slow files hold up nobody who asks for something else."""
PUT_BACK_S = 10.0
"""Between two tries to write a database again that was deleted."""
MOST_LOGGED = 50
"""Events that one call adds to the server's own log, beside changes of state; jobs' logs have all of them."""
VERSIONS = 1 << 32
"""Of an agent's orders in one process's life: each process counts from its own start's number times this, so a version
that an agent knows never comes again with other orders."""


class Service:
    """One server's state and what acts on it. `start` and `stop` are called on the loop that it serves."""

    def __init__(
        self, records: Records, files: JobFiles, limits: Limits, clock: Clock, *, encrypts: bool = False
    ) -> None:
        """`encrypts`: whether the links between a job's workers and its shards have CURVE keys."""
        self.records = records
        self.files = files
        self.clock = clock
        self.notifier = Notifier()
        self.threads = Threads()
        self.closing = False
        self.controller = Controller(limits, new_id, new_pair if encrypts else None)
        self.values = KeeperValues(
            self.controller, files, threads=self.threads, notifier=self.notifier, apply=self._written, clock=clock
        )
        self._journal = Journal(self._record, self._recorded)
        self._heartbeats: dict[str, Heartbeat] = {}
        """The newest that waits, by agent."""
        self._orders: dict[str, Orders] = {}
        """What agents are told: their newest orders that are written."""
        self._submitting: dict[str, asyncio.Task[None]] = {}
        """Jobs that the records may have and the controller has not."""
        self._ticker: asyncio.Task[None] | None = None
        self._snapshots: set[asyncio.Task[None]] = set()
        """What is done with snapshots now: for each job one thing after the other, however slow their place is."""
        self._one_at_a_time: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of each job whose snapshots something is done with."""
        self._cleaner: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._put_back_at = 0.0
        """When a database that was deleted is written again."""

    async def start(self) -> None:
        """Takes up what an earlier process has left, and starts the clock's ticks."""
        self.records.hold()
        await self._tidy(await self.threads.on_files(self.files.clean))
        starts = await self.threads.write(self.records.begin, self.clock().at)
        self.controller.count_from(starts * VERSIONS)
        agents = await self.threads.read(self.records.agents)
        kept = await self.threads.read(self.records.unfinished)
        for lost in [each for each in kept if not _can_go_on(each)]:
            await self._apply(_failed_by_restart(lost.job, lost.events, self.clock()))
        for order in self.controller.restore(agents, [each for each in kept if _can_go_on(each)], self.clock()):
            self._tell(order)
        await self._apply(self.controller.tick(self.clock()))
        self._ticker = asyncio.create_task(self._tick(), name="ticks")
        limits = self.controller.limits
        if limits.ended_s is not None or limits.ended_bytes is not None:
            self._cleaner = asyncio.create_task(self._clean(), name="removes ended jobs")

    def begin_closing(self) -> None:
        """Ends every open call that waits, so that connections can be closed."""
        self.closing = True
        self.notifier.notify_all()

    async def stop(self) -> None:
        self.begin_closing()
        for background in (self._ticker, self._cleaner, self._looking):
            if background is not None:
                background.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await background
        for task in self._snapshots:
            task.cancel()
        await asyncio.gather(*self._snapshots, return_exceptions=True)
        await self._journal.flush()
        await self.threads.stop()
        self.records.release()
        self.files.close()

    @property
    def unready(self) -> str | None:
        """Why the server is not to be sent new work; None when it is."""
        if self._ticker is None or self._ticker.done() or self.closing:
            return "the server is starting or ending"
        if self._journal.is_refused:
            return "the records refuse what is written to them; it is tried again"
        return None

    async def job(self, job: str) -> Job:
        """The job as it is now, whose log has what led to it unless the records refuse it. Raises UnknownError."""
        run = self.controller.run_of(job)
        found = run.job if run is not None else self._journal.newest(job)
        if found is None:
            return await self.recorded(job)
        if self._journal.newest(job) is not None:
            await self._journal.carry_out(())
        return found

    async def final(self, job: str) -> Path | None:
        """The job's final parameters, if they are there. One that was placed anew since they came has none yet. Raises
        UnknownError, or ValuesDeletedError for one that has succeeded."""
        found = await self.threads.on_files(self.files.final, job)
        state = (await self.job(job)).state
        if found is None and state is JobState.SUCCEEDED:
            found = await self.threads.on_files(self.files.final, job)  # it may have come since
            if found is None:
                raise ValuesDeletedError(job)
        return found if state in {JobState.FINISHING, JobState.SUCCEEDED} else None

    async def recorded(self, job: str) -> Job:
        """The job as the records hold it, with every event of its log up to there. Raises UnknownError."""
        found = await self.threads.read(self.records.job, job)
        if found is None:
            raise UnknownError("job", job)
        return found

    async def plan(self, job: str) -> JobPlan:
        """Raises UnknownError."""
        await self._handed_over(job)
        run = self.controller.run_of(job)
        found = run.plan if run is not None else await self.threads.read_large(self.records.plan, job)
        if found is None:
            raise UnknownError("job", job)
        return found

    async def programs(self, job: str) -> str:
        """The job's programs, as JSON. Raises UnknownError."""
        await self._handed_over(job)
        run = self.controller.run_of(job)
        found = run.plan.programs_json if run is not None else await self.threads.read_large(self.records.programs, job)
        if found is None:
            raise UnknownError("job", job)
        return found

    async def spec(self, job: str) -> str:
        """What was submitted, as JSON. Raises UnknownError."""
        found = await self.threads.read_large(self.records.spec, job)
        if found is None:
            raise UnknownError("job", job)
        return found

    async def submit(self, job_id: str, spec: str, plan: JobPlan, *, project: str, key: str | None, digest: str) -> Job:
        """Keeps the job, then lets it run. Raises FullError, or IntegrityError when the key was taken meanwhile.

        A caller that goes away does not part the two: what is kept is always handed over.
        """
        self.controller.check_room(project)
        if await self.threads.read(lambda: self.records.is_moved):
            raise DatabaseMovedError
        now = self.clock()
        job = Job(
            id=job_id,
            name=plan.name,
            project=project,
            state=JobState.PENDING,
            beginning=plan.beginning,
            progress=Progress(step=plan.first_step, steps=plan.steps),
            workers=plan.workers,
            shards=plan.shards,
            snapshot=None if plan.resume is None else plan.resume.step,
            created_at=now.at,
        )
        first = Event(seq=1, at=now.at, body=StateChanged(state=JobState.PENDING))
        submission = Submission(job, spec, plan, first, key, digest)
        task = self._submitting[job_id] = asyncio.create_task(self._hand_over(submission), name="submission")
        task.add_done_callback(lambda _: self._submitting.pop(job_id))
        await asyncio.shield(task)
        return await self.job(job_id)

    async def _hand_over(self, submission: Submission) -> None:
        await self.threads.write(self.records.add, submission)
        await self._apply(self.controller.submit(submission.job, submission.plan, 1, self.clock()))

    async def _handed_over(self, job: str) -> None:
        """Returns once the controller has the job, if the records have: they are told first."""
        submission = self._submitting.get(job)
        if submission is not None:
            await asyncio.wait([submission])

    async def cancel(self, job: str, *, why: str, discard: bool = False) -> Job:
        """`why` is the job's reason. A cancelled job stays so. Raises UnknownError, or WrongStateError for one that has
        ended otherwise."""
        await self._handed_over(job)
        if self.controller.run_of(job) is not None:
            await self._written(self.controller.cancel(job, why, self.clock(), discard=discard))
            return await self.job(job)
        ended = await self.job(job)
        if ended.state is JobState.CANCELLED and discard and ended.snapshot is not None:
            await self._remove_snapshots(job)
            ended = ended.model_copy(update={"snapshot": None, "snapshot_bytes": 0})
            await self._written([Save(ended)])
        if ended.state is not JobState.CANCELLED:
            raise WrongStateError(
                f"job {job} {ended.state.told} already: there is nothing to cancel; `weft rm {job}` deletes it"
            )
        await self._written([])
        return ended

    async def stop_job(self, job: str, *, why: str) -> Job:
        """`why` is in the job's reason. Raises UnknownError, or WrongStateError. One that has succeeded stays so."""
        await self._handed_over(job)
        if self.controller.run_of(job) is not None:
            await self._written(self.controller.stop(job, why, self.clock()))
            return await self.job(job)
        ended = await self.job(job)
        if ended.state is not JobState.SUCCEEDED:
            raise WrongStateError(f"job {job} {ended.state.told} already: there is nothing to stop")
        return ended

    async def scale(self, job: str, scaling: Scaling) -> Job:
        """Raises UnknownError, or WrongStateError."""
        if self.controller.run_of(job) is None:
            told = (await self.job(job)).state.told
            raise WrongStateError(
                f"job {job} {told} already, and only a running job can be scaled; `weft resume {job} --workers N` goes "
                "on with it"
            )
        await self._written(self.controller.scale(job, scaling, self.clock()))
        return await self.job(job)

    async def remove(self, job: str) -> None:
        """Deletes a job that has ended with all that is kept of it: its record last, so that a call that failed may
        come again. Raises UnknownError, WrongStateError, NotRemovedError, NotWrittenError."""
        await self._handed_over(job)
        state = (await self.job(job)).state
        if not state.is_terminal:
            raise WrongStateError(f"job {job} {state.told}: cancel it before it is removed (weft cancel {job})")
        await self._remove_snapshots(job)
        try:
            await self.threads.write(self.files.remove, job)
        except OSError as error:
            raise NotRemovedError(f"the files of job {job} cannot be deleted: {error}") from error
        await self._written([])
        await self.threads.write(self.records.remove, job)
        _log.info("job %s was removed", job)

    async def _remove_snapshots(self, job: str) -> None:
        """Raises WrongStateError where another job needs them, NotRemovedError."""
        location = self.controller.limits.snapshots
        if location is None:
            return
        async with self.alone(job):
            if self._submitting:  # one of them may have been given these snapshots to go on from
                await asyncio.wait(self._submitting.values())
            if (user := self.controller.user_of(JobFolder(location, job))) is not None:
                advice = f"wait until that has a snapshot of its own, or cancel it (weft cancel {user})"
                raise WrongStateError(f"job {user} goes on from the snapshot of job {job}: {advice}")
            try:
                await self.threads.on_snapshots(tidy, location, job, None)
            except Exception as error:  # what the library of a place raises is its own
                raise NotRemovedError(f"the snapshots of job {job} cannot be deleted: {error}") from error

    def alone(self, job: str) -> asyncio.Lock:
        """Held by what is done with the job's snapshots, and while another job is submitted that goes on from one."""
        return self._one_at_a_time.setdefault(job, asyncio.Lock())

    async def with_sizes(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with what their files take; as they are where that is not known soon."""
        looking = asyncio.ensure_future(self.threads.on_files(lambda: [self.files.nbytes(job.id) for job in jobs]))
        done, _ = await asyncio.wait([looking], timeout=SIZES_S)
        if not done:
            looking.cancel()
            return list(jobs)
        sizes = looking.result()
        return [job.model_copy(update={"file_bytes": size}) for job, size in zip(jobs, sizes, strict=True)]

    async def _clean(self) -> None:
        while True:
            try:
                await self._make_room()
            except Exception:  # noqa: BLE001  # the task's outermost frame: what is left is tried again
                _log.exception("jobs that ended long ago cannot be removed")
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _make_room(self) -> None:
        """Removes jobs that ended long ago, or first, where the settings say so."""
        limits = self.controller.limits
        jobs = await self.with_sizes(await self.threads.read(self.records.ended))
        left = sum(job.kept_bytes for job in jobs)
        for job in jobs:
            age_s = (self.clock().at - (job.ended_at or job.created_at)).total_seconds()
            is_old = limits.ended_s is not None and age_s > limits.ended_s
            if not is_old and (limits.ended_bytes is None or left <= limits.ended_bytes):
                continue
            _log.info("job %s ended %.0f s ago: the settings say to remove it", job.id, age_s)
            try:
                await self.remove(job.id)
                left -= job.kept_bytes
            except RefusalError as error:
                _log.warning("job %s is not removed yet: %s", job.id, error)

    async def register(self, registration: Registration) -> Registered:
        registered, instructions = self.controller.register(registration, self.clock())
        _log.info("agent %s registered as %s (pid %d)", registered.id, registration.name, registration.pid)
        await self._written(instructions)
        return registered

    async def leave(self, agent: str, why: str | None) -> None:
        await self._written(self.controller.leave(agent, self.clock(), why))

    async def heartbeat(self, agent: str, heartbeat: Heartbeat, has_left: Callable[[], Awaitable[bool]]) -> Orders:
        """The agent's orders, at once when they are newer than it knows, else after its wait or as its next heartbeat
        comes. `has_left`: whether nobody hears the answer. Raises UnknownError."""
        if instructions := self.controller.heard(agent, self.clock()):
            await self._apply(instructions)
        self._heartbeats[agent] = heartbeat
        self.notifier.notify(_agent_topic(agent))
        try:
            return await self._ordered(agent, heartbeat, has_left)
        finally:
            if self._heartbeats.get(agent) is heartbeat:
                del self._heartbeats[agent]

    async def _ordered(self, agent: str, heartbeat: Heartbeat, has_left: Callable[[], Awaitable[bool]]) -> Orders:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(heartbeat.wait_s, self.controller.limits.lost_after_s / 2)
        while True:
            changed = self.notifier.subscribe(_agent_topic(agent))
            orders = self._orders.get(agent)
            if orders is None:
                raise UnknownError("agent", agent)
            remaining = deadline - loop.time()
            is_newest = self._heartbeats.get(agent) is heartbeat
            if orders.version != heartbeat.known or remaining <= 0 or self.closing or not is_newest:
                if is_newest and await has_left():
                    self.controller.hung_up(agent)
                return orders
            await notified(changed, remaining)

    def allocated_programs(self, allocation: str, term: int, sha256: str) -> str:
        """The document of that hash that the allocation runs. Raises a RefusalError."""
        plan = self.controller.plan_of(allocation, term)
        if plan.programs_sha256 != sha256:
            raise NotKeeperError(f"job {plan.name} has no programs of SHA-256 {sha256}")
        return plan.programs_json

    def with_programs(self, allocation: Allocation) -> Allocation:
        """The allocation for an agent that does not ask for programs by their hash."""
        if not isinstance(allocation, WorkerAllocation):
            return allocation
        with contextlib.suppress(RefusalError):  # it has just ended: newer orders follow
            plan = self.controller.plan_of(allocation.id, allocation.term)
            return allocation.model_copy(update={"programs": plan.programs})
        return allocation

    async def report(self, allocation: str, report: Report) -> None:
        """Takes facts; when it returns, a crash does not lose them. Raises a RefusalError."""
        if report.trace is not None:  # Before the event of the same report, which may end the job.
            await self._add_trace(allocation, report.term, report.trace)
        await self._written(self.controller.report(allocation, report, self.clock()))

    async def _add_trace(self, allocation: str, term: int, trace: ProcessTrace) -> None:
        """Raises a RefusalError."""
        self.controller.plan_of(allocation, term)
        lease = self.controller.lease_of(allocation)
        told = trace.model_copy(update={"kind": lease.kind, "place": lease.place})
        try:
            await self.threads.write(self.files.add_trace, lease.job, told.model_dump_json())
        except OSError as error:
            _log.warning("a part of the trace of job %s is lost: %s", lease.job, error)

    async def trace(self, job: str) -> JobTrace:
        """What the job's processes have told of their traced steps. Raises UnknownError, WrongStateError where that is
        nothing."""
        plan = await self.plan(job)
        parts = await self.threads.on_files(self.files.trace, job)
        if not parts:
            window = plan.traced
            steps = f"{window.first_step} to {window.first_step + window.steps - 1}"
            detail = (
                f"job {job} has no trace yet: it traces steps {steps}"
                if window.steps
                else f"job {job} has no trace: with its {plan.steps} steps and trace={plan.trace!r} it traces none"
            )
            raise WrongStateError(detail)
        return JobTrace(window=plan.traced, processes=[ProcessTrace.model_validate_json(part) for part in parts])

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_INTERVAL_S)
            try:
                await self._put_back()
                await self._apply(self.controller.tick(self.clock()))
                if (brought := self.controller.with_final()) and (self._looking is None or self._looking.done()):
                    self._looking = asyncio.create_task(self._look_at(brought), name="looks at final values")
            except Exception:  # noqa: BLE001  # the task's outermost frame: a server without ticks would lose nobody
                _log.exception("a tick failed; the next one goes on from what it has left")

    async def _look_at(self, brought: Sequence[str]) -> None:
        """Final values of jobs that have not ended: where somebody has deleted them, they are brought again."""
        for job in brought:
            try:
                found = await self.threads.on_files(self.files.final, job)
            except OSError as error:
                _log.warning("the final values of job %s cannot be looked at: %s", job, error)
                continue
            if found is None:
                await self._apply(self.controller.final_deleted(job, self.clock()))

    async def _put_back(self) -> None:
        """Where the database was deleted, writes it again, from what is still open of it."""
        now = asyncio.get_running_loop().time()
        if not self.records.is_deleted or now < self._put_back_at:
            return
        self._put_back_at = now + PUT_BACK_S
        try:
            if await self.threads.write(self.records.put_back):
                self._put_back_at = now
                _log.warning("the database was deleted; it is written again")
            else:
                _log.error("the database was deleted, and another one is in its place: see /readyz")
        except OSError as error:
            _log.error("the database was deleted, and cannot be written again: %s", error)

    async def _apply(self, instructions: Sequence[Instruction]) -> bool:
        """Carries instructions out through the journal. Whether the records have them. Never raises for the records."""
        appended = [each for each in instructions if isinstance(each, Append)]
        for each in appended[:MOST_LOGGED]:
            _log_event(each)
        if len(appended) > MOST_LOGGED:
            _log.info("and %d more events of jobs", len(appended) - MOST_LOGGED)
            for each in [each for each in appended[MOST_LOGGED:] if isinstance(each.event.body, StateChanged)]:
                _log_event(each)
        return await self._journal.carry_out(instructions)

    async def _written(self, instructions: Sequence[Instruction]) -> None:
        """Carries out what must not be lost once the call is answered. Raises NotWrittenError."""
        if not await self._apply(instructions):
            raise NotWrittenError

    async def _record(self, instructions: Sequence[Instruction]) -> None:
        await self.threads.write(self.records.carry_out, instructions)

    async def _recorded(self, instructions: Sequence[Instruction]) -> None:
        """The records have these: agents are told, whoever waits is woken, and what has ended is tidied up."""
        for job in {each.job for each in instructions if isinstance(each, Append)}:
            self.notifier.notify(job_topic(job))
        for each in instructions:
            match each:
                case Order():
                    self._tell(each)
                case SetEnded():
                    self.values.ended(each)
                    await self._on_disk(self.files.drop, each.job, each.file)
                case KeepSnapshot() | TidySnapshots():
                    task = asyncio.create_task(self._on_snapshots(each), name="snapshots")
                    self._snapshots.add(task)
                    task.add_done_callback(self._snapshots.discard)
                case Close():
                    await self._on_disk(self.files.end, each.job, each.succeeded)
                    self.values.closed(each.job)
                    self.notifier.notify(job_topic(each.job))
                case _:
                    pass

    async def _on_snapshots(self, instruction: KeepSnapshot | TidySnapshots) -> None:
        error: str | None = None
        job, location = instruction.job, self.controller.limits.snapshots
        async with self.alone(job):
            try:
                if isinstance(instruction, KeepSnapshot):
                    await self.threads.on_snapshots(complete, job, instruction.snapshot)
                elif location is not None:
                    await self.threads.on_snapshots(tidy, location, job, instruction.keep, instruction.since)
            except Exception as raised:  # noqa: BLE001  # what the library of a place raises is its own
                error = str(raised) or type(raised).__name__
                _log.warning("snapshots of job %s: %s", job, error)
        if isinstance(instruction, KeepSnapshot):
            step = instruction.snapshot.step
            await self._apply(self.controller.snapshot_checked(job, step, error, self.clock()))

    def _tell(self, order: Order) -> None:
        if order.orders is None:
            self._orders.pop(order.agent, None)
        else:
            self._orders[order.agent] = order.orders
        self.notifier.notify(_agent_topic(order.agent))

    async def _on_disk(self, function: Callable[..., None], job: str, *args: object) -> None:
        try:
            await self.threads.write(function, job, *args)
        except OSError as error:
            _log.warning("files of job %s, which are not needed any more, are left: %s", job, error)

    async def _tidy(self, jobs: Sequence[str]) -> None:
        """Ends the files of jobs that ended, or were never kept, when an earlier process was killed.

        A job that was never kept has no result: one that the records do not know is another database's, and stays.
        """
        states = await self.threads.read(self.records.states, jobs)
        results = set(await self.threads.on_files(self.files.results))
        for job in jobs:
            state = states.get(job)
            if state is None and job in results:
                _log.error("the records do not know job %s: its final parameters are left where they are", job)
            elif state is None:
                await self._on_disk(self.files.remove, job)
            elif state.is_terminal:
                await self._on_disk(self.files.end, job, state is JobState.SUCCEEDED)


def job_topic(job: str) -> str:
    """Notified when the job's log has grown."""
    return f"job/{job}"


def _agent_topic(agent: str) -> str:
    return f"agent/{agent}"


def new_id() -> str:
    """For a job, an agent or a file."""
    return uuid4().hex[:16]


def new_pair() -> CurvePair:
    """A pair of CURVE keys that nobody else has."""
    public, secret = zmq.curve_keypair()
    return CurvePair(public=public.decode(), secret=secret.decode())


def _can_go_on(kept: KeptJob) -> bool:
    """Whether the records hold all that the controller needs; those of an older version do not."""
    return kept.job.state is JobState.PENDING or RUN in kept.parts


def _failed_by_restart(job: Job, events: int, now: Timestamp) -> list[Instruction]:
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
