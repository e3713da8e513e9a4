"""Values of jobs' parameters: brought by keepers, asked for, set while a job runs or before it begins.

Belongs to the event loop, as the controller does. A file is in place before the controller learns of it, so that what
it remembers is there when the server starts again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from weft.api.agent import SetDone
from weft.api.lifecycle import JobState
from weft.api.values import ValuesSet
from weft_server.control.clock import Clock
from weft_server.control.controller import Controller
from weft_server.control.instructions import Instruction, SetEnded
from weft_server.control.job_run import GOES_ON, JobRun
from weft_server.notify import Notifier, notified
from weft_server.planning.plan import Given, JobPlan
from weft_server.refusals import KeeperSilentError, NotSetError, WrongStateError
from weft_server.storage.job_files import JobFiles, Upload
from weft_server.threads import Threads

Apply = Callable[[Sequence[Instruction]], Awaitable[None]]
"""Carries instructions out; raises NotWrittenError where a crash would lose them."""


class KeeperValues:
    """What is asked of keepers, and who waits for it."""

    def __init__(
        self,
        controller: Controller,
        files: JobFiles,
        *,
        threads: Threads,
        notifier: Notifier,
        apply: Apply,
        clock: Clock,
    ) -> None:
        self._controller = controller
        self._files = files
        self._threads = threads
        self._notifier = notifier
        self._apply = apply
        self._clock = clock
        self._live: dict[str, tuple[Path, int]] = {}
        self._setting: dict[tuple[str, int], asyncio.Future[SetDone]] = {}
        self._asking: Counter[str] = Counter()
        """Who waits for the values of a running job, by job."""
        self._giving: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of each job that is given first values now."""

    def check(self, allocation: str, term: int, step: int, final: bool) -> tuple[str, JobPlan]:
        """(job, plan) that an upload is for; raises a RefusalError when it is not wanted."""
        run = self._controller.check_parameters(allocation, term, step, final, self._clock())
        return run.job.id, run.plan

    async def keep(self, allocation: str, term: int, step: int, final: bool, place: Callable[[], Path]) -> None:
        """Puts an upload in its place and goes on. Raises a RefusalError when it has come too late."""
        run = self._controller.check_parameters(allocation, term, step, final, self._clock())
        path = await self._threads.write(place)
        instructions = self._controller.keep(allocation, term, step, final, self._clock())
        if not final:
            self._live[run.job.id] = (path, step)
        self._notifier.notify(_values_topic(run.job.id))
        await self._apply(instructions)

    async def live(self, job: str, timeout_s: float) -> tuple[Path, int]:
        """Values of a running job, asked for now: (file, step). Raises KeeperSilentError or a RefusalError."""
        keeper, instructions = self._controller.want_parameters(job)
        before = self._live.get(job)
        changed = self._notifier.subscribe(_values_topic(job))
        self._asking[job] += 1
        try:
            await self._apply(instructions)
            is_silent = self._live.get(job) is before and not await notified(changed, timeout_s)
        finally:
            self._asking[job] -= 1
            self._asking += Counter()  # forgets jobs that nobody waits for
        if is_silent:
            if not self._asking[job]:
                await self._apply(self._controller.forget_parameters(keeper))
            raise KeeperSilentError(
                f"{keeper.who}, the keeper, did not bring the parameters within {timeout_s:g} s; "
                f"it is at step {keeper.step}"
            )
        brought = self._live.get(job)
        if brought is None or brought is before:
            raise WrongStateError(f"job {job} has ended meanwhile")
        return brought

    def check_set(self, job: str) -> None:
        """Raises a RefusalError where nothing can be set now: the body need not be read."""
        run = self._run(job)
        if run.state is not JobState.PENDING:
            run.values.check_set(run.state)

    async def set(self, job: str, upload: Upload, names: Sequence[str], timeout_s: float) -> ValuesSet:
        """Sets parameters from a checked document. Raises KeeperSilentError or a RefusalError."""
        given = await self._threads.write(self._files.give, upload, job, names)
        try:
            if await self._give(job, given):
                return ValuesSet(names=given.names, step=0)
            number, instructions = self._controller.ask_set(job, given, self._clock())
        except BaseException:
            run = self._controller.run_of(job)
            if run is None or run.values.given != given:  # what the controller has is written once the records can
                await self._threads.write(self._files.drop, job, given.file)
            raise
        done: asyncio.Future[SetDone] = asyncio.get_running_loop().create_future()
        self._setting[job, number] = done
        try:
            await self._apply(instructions)
            outcome = await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            raise await self._too_late(job, number, timeout_s) from None
        finally:
            self._setting.pop((job, number), None)
        if outcome.error is not None:
            raise NotSetError(f"the values were not set: {outcome.error}")
        return ValuesSet(names=given.names, step=outcome.step)

    def ended(self, instruction: SetEnded) -> None:
        """A set was done, or given up."""
        waiting = self._setting.get((instruction.job, instruction.done.number))
        if waiting is not None and not waiting.done():
            waiting.set_result(instruction.done)

    def closed(self, job: str) -> None:
        """The job has ended: nobody is to wait for its keeper."""
        self._live.pop(job, None)
        self._notifier.notify(_values_topic(job))
        for (waiting_for, _), waiting in self._setting.items():
            if waiting_for == job and not waiting.done():
                waiting.set_exception(WrongStateError(f"job {job} has ended meanwhile: nothing was set"))

    def first_values(self, allocation: str, term: int) -> tuple[Path, list[str]]:
        """(document, names) of the first values that a keeper sets. Raises a RefusalError."""
        job, given = self._controller.first_values(allocation, term)
        return self._files.given(job, given.file), given.names

    def open_set(self, allocation: str, term: int, number: int) -> tuple[Path, list[str]]:
        """(document, names) of values that a keeper is to set. Raises a RefusalError."""
        job, given = self._controller.open_set(allocation, term, number)
        return self._files.given(job, given.file), given.names

    async def _give(self, job: str, given: Given) -> bool:
        """Makes them the job's first values, together with those it has. Whether it was still pending."""
        async with self._giving.setdefault(job, asyncio.Lock()):
            run = self._run(job)
            if run.state is not JobState.PENDING:
                return False
            before, whole = run.values.given, given
            if before is not None:
                order = [each.name for each in run.plan.parameters]
                # Not on the thread that writes: it may copy many gigabytes.
                whole = await self._threads.on_files(self._files.give_also, job, before, given, order)
            if self._run(job).state is not JobState.PENDING:
                await self._threads.write(self._files.drop, job, whole.file)
                return False
            await self._apply(self._controller.give(job, whole, self._clock()))
        for file in [] if before is None else [before.file, given.file]:
            await self._threads.write(self._files.drop, job, file)
        return True

    async def _too_late(self, job: str, number: int, timeout_s: float) -> KeeperSilentError:
        run = self._controller.run_of(job)
        keeper = None if run is None else run.leases.keeper
        who = "nobody" if keeper is None else keeper.who
        at = "" if keeper is None else f"; it is at step {keeper.step}"
        why = f"{who}, the keeper, did not set the parameters within {timeout_s:g} s{at}"
        await self._apply(self._controller.withdraw_set(job, number, why, self._clock()))
        return KeeperSilentError(f"{why}; {GOES_ON}, as the job's log will tell")

    def _run(self, job: str) -> JobRun:
        run = self._controller.run_of(job)
        if run is None:
            advice = "submit a job with init_from to go on from its values"
            raise WrongStateError(f"job {job} has ended, nothing can be set any more; {advice}")
        return run


def _values_topic(job: str) -> str:
    return f"values/{job}"
