"""The life of one job: facts in, instructions out. Pure; the transition tables are in `weft.api.lifecycle`.

pending --placed--> starting: shards are told; once all are ready, workers are told; once all run,
--started--> running: once every worker has done its last step,
--trained--> finishing: once the keeper's final parameters and a snapshot of the last step are there,
--kept--> succeeded. A failure or a cancel ends it from any of these. At its end every lease is released.

A job is placed anew, from its newest snapshot, where a process or an agent is lost (recovering), where it ends early
(stopping) and where it is to have other numbers of processes (scaling). The latter two wait for the next snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from weft.api.agent import LOST_AFTER_S, AgentKind, Allocation, Report, SetDone
from weft.api.event import LogLine, StateChanged
from weft.api.job import Job
from weft.api.lifecycle import (
    ALLOCATION_TRANSITIONS,
    JOB_TRANSITIONS,
    AllocationEvent,
    AllocationState,
    JobEvent,
    JobState,
    after,
)
from weft.api.store import StoreSpec
from weft_server.control.clock import Timestamp
from weft_server.control.ending import Ending, told_not_finite
from weft_server.control.instructions import Close, Instruction, Order, Remember, Replan
from weft_server.control.leases import STARTED, Agent, Lease, Leases, NewPair
from weft_server.control.limits import TimeLimits
from weft_server.control.log import JobLog
from weft_server.control.memory import RUN, SCALING, Parts, RunMemory, RunState, Scaling
from weft_server.control.metrics import RunMetrics
from weft_server.control.orders import allocation_of, with_keys
from weft_server.control.recovery import Fail, HandOver, PlaceAnew, after_loss, is_dispensable, overdue
from weft_server.control.scheduler import Placement
from weft_server.control.snapshots import RunSnapshots
from weft_server.control.values import RunValues
from weft_server.planning.plan import Given, JobPlan
from weft_server.refusals import IllegalReportError, WrongStateError, listed

GOES_ON = "if its keeper has begun with it, it goes on and may still hold later"
"""Of a set that nobody waits for any more."""
_BEGINNING = {AllocationState.ASSIGNED, AllocationState.READY}
_ENDING = {JobEvent.KEPT, JobEvent.FAILED, JobEvent.CANCELLED}


class JobRun:
    """A job that has not ended. `job` is what is told of it."""

    def __init__(
        self,
        job: Job,
        plan: JobPlan,
        seq: int,
        limits: TimeLimits,
        now: Timestamp,
        *,
        written: Mapping[str, str] = MappingProxyType({}),
        snapshots: str | None = None,
    ) -> None:
        """A job whose newest event is `seq`; it goes on from what an earlier process has `written`, by part. Its
        `snapshots` are kept there.

        Deadlines begin anew.
        """
        memory = RunMemory.model_validate_json(written[RUN]) if RUN in written else RunMemory.of(plan)
        self.memory = memory
        self._run = RunState(
            job.id,
            plan if memory.end is None else plan.model_copy(update={"steps": memory.end}),
            memory,
            Parts(written),
        )
        self.since = now.seconds
        self.leases = Leases(job.id, memory, written)
        self._limits = limits
        self.log = JobLog(job, plan, seq, told=memory.told(now))
        self._metrics = RunMetrics(self._run, written)
        self._told_unknown = False
        """Whether metrics that the job has not were told of."""
        self._ending = Ending(self._run, now)
        self.values = RunValues(self._run, self.leases, written)
        self.snapshots = RunSnapshots(self._run, self.leases, snapshots, now, lambda: self._ending.best)
        self._scaling = Scaling.model_validate_json(written[SCALING]) if SCALING in written else None
        """How the job is run once it is placed anew."""
        self._discards = False
        self._replanned: list[Instruction] = []
        self._deadline: float | None = None
        self.vacant_since = now.seconds
        """When a slot was vacated last."""
        self._refilled = now.seconds
        """When other workers took slots over last."""
        self._store: StoreSpec | None = None
        self._await(self.state, now)
        if self.state is JobState.RUNNING:
            self.snapshots.begin(now, wanted=self._changes_soon)
        elif self.state is JobState.FINISHING:
            self.snapshots.finish()

    @property
    def job(self) -> Job:
        """What is told of it."""
        return self.log.job

    @property
    def plan(self) -> JobPlan:
        """The job's plan as it is now."""
        return self._run.plan

    @property
    def state(self) -> JobState:
        return self.job.state

    @property
    def keeper(self) -> Lease:
        """The worker that brings parameters. Raises WrongStateError before it runs."""
        keeper = self.leases.keeper
        if keeper is None or self.state not in {JobState.RUNNING, JobState.FINISHING}:
            raise WrongStateError(f"job {self.job.id} {self.state.told}: it has no parameters yet")
        if keeper.place in self.memory.vacant:
            raise WrongStateError(f"{keeper.who}, which brings parameters, was lost; ask again once another took over")
        return keeper

    @property
    def lacks_workers(self) -> bool:
        """Whether other workers are to take slots over."""
        return bool(self.memory.vacant) and not self.state.is_terminal

    @property
    def _changes_soon(self) -> bool:
        """Whether the job is placed anew at its next snapshot."""
        return self.memory.stopping is not None or self._scaling is not None

    @property
    def _standing(self) -> str | None:
        """What there is to say of a job that runs."""
        if self.memory.stopping is not None and self.memory.is_asked_to_stop:
            return f"it stops at its next snapshot, {self.memory.stopping}"
        if self.memory.stopping is not None:
            return f"stops at its next snapshot: {self.memory.stopping}"
        if self._scaling is not None:
            return f"goes on with {_numbers(self._scaling.plan)} from its next snapshot on"
        return self.values.under_way

    def tell_beginning(self, now: Timestamp) -> None:
        """Says what it begins with, where that is not its graph's."""
        if self.plan.beginning is not None:
            self.log.say(f"the job {self.plan.beginning}", now)

    def wait(self, reason: str) -> bool:
        """What a job that waits to be placed waits for: whether that is new."""
        is_new = (self.state.is_waiting or self.lacks_workers) and reason != self.job.reason
        if is_new:
            self.log.set(reason=reason)
        return is_new

    def place(
        self,
        placement: Placement,
        agents: Callable[[str], Agent],
        term: int,
        now: Timestamp,
        new_pair: NewPair | None = None,
    ) -> None:
        """PLACED: gives every place to an agent, and tells the shards."""
        self.leases.fill(placement, agents, term, new_pair)
        self.log.set(devices=[agents(each).registration.device for each in placement.workers])
        self._move(JobEvent.PLACED, now)
        who = ", ".join(lease.who for lease in self.leases.by_id.values())
        keeper = self.leases.keeper
        self.log.say(f"runs on {who}; {keeper.who if keeper else 'nobody'} saves the parameters", now)
        self.leases.tell(self.leases.shards)
        self._advance(now)  # A job without shards waits for none.

    def refill(self, placement: Placement, agents: Callable[[str], Agent], now: Timestamp) -> None:
        """Other agents go on in the slots of workers that were lost."""
        devices = list(self.job.devices)
        for lease in self.leases.refill(placement, agents):
            if lease.place < len(devices):  # None are known of a job that an earlier release has placed.
                devices[lease.place] = agents(lease.agent).registration.device
            self.log.say(
                f"{lease.who} takes over, and repeats the step that was interrupted; no other step is repeated", now
            )
        self.log.set(reason=self._standing, devices=devices)
        self._refilled = now.seconds
        self._await(self.state, now)

    def allocation(self, lease: Lease, lost_after_s: float = LOST_AFTER_S) -> Allocation:
        """The lease as its agent's orders hold it."""
        memory = self.memory
        given = [] if memory.began_with else self.values.given_names
        if self._store is None:
            keys = [] if memory.keys is None else [pair.public for pair in memory.keys.shards]
            self._store = self.plan.store(self.job.id, memory.term, memory.endpoints, given, keys)
        store = self._store
        if lease.kind is AgentKind.SHARD:  # It is told before all endpoints are known, and needs none.
            store = store.model_copy(update={"shards": [""] * len(store.shards)})
        keeps = lease is self.leases.keeper
        told = allocation_of(
            lease,
            self.plan,
            store,
            keeper=keeps,
            given=given if keeps else [],
            snapshot=memory.began_with,
            lost_after_s=lost_after_s,
            last_snapshot=self.snapshots.last_folder_of(lease),
        )
        return told if memory.keys is None else with_keys(told, memory.keys)

    def report(self, lease: Lease, report: Report, silent: Callable[[], str], now: Timestamp) -> None:
        """Facts from an agent. `silent()` names agents not heard of, for the reason of a failure; '' for none.

        Raises StaleTermError or IllegalReportError and changes nothing. A repeated report is ignored.
        """
        lease.check_held(report.term)
        if report.seq <= lease.seq:
            return
        if report.event is not None and (lease.state, report.event) not in ALLOCATION_TRANSITIONS:
            raise IllegalReportError(f"{lease.who} is {lease.state} and cannot be {report.event} next")
        is_ready = lease.kind is AgentKind.SHARD and report.event is AllocationEvent.READY
        if is_ready or report.endpoint is not None:
            self.leases.take_endpoint(lease, report.endpoint, is_ready=is_ready)
            self._store = None
        lease.take(report, self.plan.steps)
        self._take_metrics(lease, report, now)
        for line in report.logs:
            self.log.append(LogLine(level=line.level, source=lease.source, message=line.message), now)
        for done in report.sets:
            self._take_set(lease, done, now)
        if report.snapshot is not None:
            self.log.add(self.snapshots.take(lease, report.snapshot, now), now)
            self._go_on_finishing(now)
        self._judge(now)
        if report.event is not None and lease.is_held:
            self._take_event(lease, report.event, report, silent, now)

    def snapshot_checked(self, step: int, error: str | None, now: Timestamp) -> None:
        """A snapshot of that step is whole, with its manifest; or why it is not."""
        self.log.add(self.snapshots.checked(step, error), now)
        newest = self.snapshots.newest
        if newest is not None and newest.step != self.job.snapshot:
            self.log.set(snapshot=newest.step, snapshot_bytes=self.snapshots.nbytes)
        self._judge(now)
        if error is None and self.state is JobState.RUNNING:
            self._change_plan(step, now)
        self._advance(now)

    def _change_plan(self, step: int, now: Timestamp) -> None:
        """At the snapshot of that step: the job ends there, or goes on from it with other numbers of processes."""
        if self.memory.stopping is not None and self.memory.end is None:
            self._end_at(step, now)
        elif self._scaling is not None:
            done, numbers = self.leases.step, _numbers(self._scaling.plan)
            self._place_anew(f"goes on with {numbers} from step {step}", now, JobEvent.SCALED)
            again = max(0, done - step)
            self.log.say(f"the job goes on with {numbers} from step {step}: {again} steps are done again", now)

    def expect(self, lease: Lease, term: int, step: int, final: bool, now: Timestamp) -> None:
        """The parameters of `step` are to come. A keeper that tries has its whole time again: the disk may be full.
        Raises what `RunValues.check_brought` raises."""
        self.values.check_brought(lease, term, step, final)
        if final:
            self._await(self.state, now)

    def keep(self, lease: Lease, term: int, step: int, final: bool, now: Timestamp) -> None:
        """The server has the parameters of `step`. Raises what `RunValues.check_brought` raises."""
        self.values.check_brought(lease, term, step, final)
        if final:
            self.memory.has_final = True
            self._await(self.state, now)
            self._advance(now)

    def final_deleted(self, now: Timestamp) -> None:
        """The final values that were brought are not on the server's disk any more: they are brought again, by whoever
        takes the keeper's place, from what shards hold or the newest snapshot."""
        keeper = self.leases.keeper
        if not self.memory.has_final or self.state.is_terminal or keeper is None:
            return
        self.memory.has_final = False
        self._await(self.state, now)
        self._recover(keeper, f"the final values that {keeper.who} brought were deleted from the server's disk", now)

    def ask_set(self, given: Given, now: Timestamp) -> int:
        """The keeper is to set these values: the set's number. Raises WrongStateError or FullError."""
        number = self.values.ask_set(self.state, given)
        keeper = self.leases.keeper
        who = "nobody" if keeper is None else keeper.who
        self.log.say(f"set {number} was asked for: {who} is to set {listed(given.names)} between two steps", now)
        self.log.set(reason=self.values.under_way)
        return number

    def withdraw_set(self, number: int, why: str, now: Timestamp) -> None:
        """Nobody waits for it any more; what the keeper has begun of it goes on."""
        given = self.values.give_up_set(number, why)
        if given is not None:
            self.log.say(f"set {number} of {listed(given.names)} was given up: {why}; {GOES_ON}", now, "warning")
            self.log.set(reason=f"set {number} was given up; {GOES_ON}")

    def agent_silent(self, lease: Lease, silent_s: float, limit_s: float, now: Timestamp) -> None:
        """The lease's agent misses heartbeats: the job waits for it, and its deadlines wait too."""
        lease.is_silent = True
        self.log.say(
            f"{lease.who} has been silent for {silent_s:.1f} s; it is waited for, up to {limit_s:g} s", now, "warning"
        )

    def agent_heard(self, lease: Lease, silent_s: float, now: Timestamp) -> None:
        """The lease's agent is there again."""
        lease.is_silent = False
        self._await(self.state, now)
        self.log.say(f"{lease.who} is heard again after {silent_s:.1f} s; the job goes on", now)

    def agent_lost(self, lease: Lease, why: str, now: Timestamp, *, how: str = "was lost", counts: bool = True) -> None:
        """The job recovers from a lost agent, or fails; a worker that has done its part and keeps nothing is not
        missed."""
        if is_dispensable(self._run, self.job, lease):
            self.log.say(f"{lease.who} {how} after its last step: {why}", now, "warning")
            lease.apply(AllocationEvent.RELEASED)
            self._go_on_finishing(now)
            return
        self._recover(lease, f"{lease.who} {how}: {why}, {self._at(lease)}", now, counts=counts)

    def cancel(self, why: str, now: Timestamp, *, discard: bool = False) -> None:
        """Ends the job, and keeps its newest snapshot unless that is to be discarded. A cancelled one stays so. Raises
        WrongStateError once it has ended otherwise."""
        if self.state.is_terminal:
            raise WrongStateError(f"job {self.job.id} {self.state.told}, so it cannot be cancelled")
        self._discards = discard
        self._move(JobEvent.CANCELLED, now, why)

    def stop(self, why: str, now: Timestamp) -> None:
        """The job ends at a step soon, and what it has trained by then is its result. Raises WrongStateError."""
        if self.memory.stopping is not None:
            return
        if self.state is not JobState.RUNNING:
            raise WrongStateError(f"job {self.job.id} {self.state.told}: one that runs can be stopped; cancel ends any")
        if lacking := self.snapshots.lacking:
            raise WrongStateError(
                f"job {self.job.id} takes no snapshots, so it cannot be stopped at one: {lacking}. "
                "Save its parameters, then cancel it"
            )
        self._check_snapshot_can_come()
        self.memory.stopping, self.memory.is_asked_to_stop = why, True
        self._change_at_next_snapshot(f"the job is to stop at its next snapshot: {why}", now)

    def scale(self, scaling: Scaling, now: Timestamp) -> None:
        """The job goes on with other numbers of workers and shards, from a step soon; the same numbers change nothing.
        Raises WrongStateError."""
        if self.state is not JobState.RUNNING or self.memory.stopping is not None:
            raise WrongStateError(
                f"job {self.job.id} {self.state.told}: one that runs, and is not to stop, can be scaled"
            )
        if lacking := self.snapshots.lacking:
            advice = "cancel it, and submit it with the numbers that it should have"
            raise WrongStateError(f"job {self.job.id} takes no snapshots to go on from: {lacking}; {advice}")
        if self._scaling is None and (scaling.plan.workers, scaling.plan.shards) == (self.job.workers, self.job.shards):
            return  # It runs so already.
        self._check_snapshot_can_come()
        self._scaling = scaling
        self._run.parts.put(SCALING, scaling, scaling.model_dump_json)
        self._change_at_next_snapshot(f"the job {self._standing}", now)

    def _check_snapshot_can_come(self) -> None:
        """Raises WrongStateError where the job has no snapshot, and comes to no step at which it could be taken."""
        if self.lacks_workers and self.snapshots.newest is None:
            lost = " and ".join(f"worker {place}" for place in self.memory.vacant)
            told = f"waits for a worker to take the place of {lost}, and has no snapshot yet"
            raise WrongStateError(f"job {self.job.id} {told}: start a worker, or cancel the job")

    def _change_at_next_snapshot(self, told: str, now: Timestamp) -> None:
        self.snapshots.want(now)
        self.log.say(told, now)
        self.log.set(reason=self._standing)
        if self.lacks_workers and (newest := self.snapshots.newest) is not None:
            self._change_plan(newest.step, now)  # No other will come before somebody takes the slot over.

    def fail(self, reason: str, now: Timestamp) -> None:
        """Ends the job. One whose final values the server has is trained: it succeeds, and the reason is told."""
        if self.memory.has_final:
            self.log.say(reason, now, "warning")
            self._move(JobEvent.KEPT, now, f"trained, but {reason}")
        else:
            self._move(JobEvent.FAILED, now, reason)

    def tick(self, now: Timestamp) -> bool:
        """Deadlines, and progress that is due: whether there was any."""
        if self._deadline is not None and now.seconds >= self._deadline and not self._waits_for_silent:
            self.fail(overdue(self.state, self.leases, self._limits), now)
            return True
        if self.state is JobState.FINISHING:
            self._go_on_finishing(now)
            return True
        if self.state is not JobState.RUNNING:
            return False
        if late := self._late_successor(now):
            self._recover(late, f"{late.who} did not begin within {self._limits.start_s:g} s", now)
            return True
        self.log.add(self.snapshots.tick(now), now)
        return self._progress(now) or self.snapshots.has_work

    @property
    def _waits_for_silent(self) -> bool:
        return any(lease.is_silent and lease.is_held for lease in self.leases.by_id.values())

    def drain(self) -> list[Instruction]:
        """The instructions since the last call."""
        out = self.log.drain()
        self.memory.told_at = self.log.told_at
        self.memory.write(self._run.parts)
        self.leases.write(self._run.parts)
        out += self._replanned
        self._replanned = []
        parts = self._run.parts.drain()
        if parts and not self.state.is_terminal:
            out.append(Remember(self.job.id, parts))
        out += [Order(agent) for agent in self.leases.drain()]
        out += self.values.drain()
        out += self.snapshots.drain()
        if self.state.is_terminal:
            out.append(Close(self.job.id, self.state is JobState.SUCCEEDED))
        return out

    def _take_metrics(self, lease: Lease, report: Report, now: Timestamp) -> None:
        if lease.kind is not AgentKind.WORKER:
            return
        for metric in report.metrics:
            if not self._told_unknown and (unknown := self._metrics.unknown(metric)):
                self._told_unknown = True
                told = f"{lease.who} reports metrics that the job has not, {listed(unknown)}: they are left out"
                self.log.say(told, now, "warning")
            taken = self._metrics.take(lease.place, metric)
            if taken is None:
                continue
            means, is_new = taken
            # The other split's stay; of this one, what is reported now is all there is.
            others = {name: one for name, one in self.job.metrics.items() if not name.startswith(f"{metric.split}/")}
            newest = {f"{means.split}/{name}": value for name, value in means.values.items()}
            self.log.set(metrics={**others, **newest})
            if is_new:
                self.log.append(means, now)
            is_stopping = self._ending.take(means, is_new, now)
            if is_new and self._ending.warning is not None:
                self.log.say(self._ending.warning, now, "warning")
            if is_stopping:
                self.log.say(f"the job stops: {self.memory.stopping}", now)

    def _judge(self, now: Timestamp) -> None:
        """Ends the job where its metrics say so: by failing, or with its best snapshot once that is there."""
        if self._ending.diverged is not None and not self.state.is_terminal:
            kept = self.snapshots.newest
            before = "" if kept is None else f"; the snapshot of step {kept.step} is from before"
            self._move(JobEvent.FAILED, now, self._ending.diverged + before)
        elif self.state is JobState.RUNNING and self._ending.ends_by_itself:
            if (best := self._ending.best_again) is not None:
                self._end_at(best, now)
            else:
                self.snapshots.want(now)

    def _take_set(self, lease: Lease, done: SetDone, now: Timestamp) -> None:
        if lease is not self.leases.keeper:
            return
        line = self.values.end_set(done)
        if line is None:
            how = f"at step {done.step}" if done.error is None else f"not: {done.error}"
            self.log.say(f"{lease.who} has carried out set {done.number} though it was given up, {how}", now, "warning")
        else:
            self.log.append(line, now)
        self.memory.set_at = max(self.memory.set_at, done.step)
        if self.job.reason is not None:
            self.log.set(reason=self._standing)

    def _take_event(
        self, lease: Lease, event: AllocationEvent, report: Report, silent: Callable[[], str], now: Timestamp
    ) -> None:
        has_done_its_part = is_dispensable(self._run, self.job, lease)
        lease.apply(event)
        if has_done_its_part and event in {AllocationEvent.FAILED, AllocationEvent.RELEASED}:
            self.log.say(f"{lease.who} ended after the last step: {report.reason}", now, "warning")
            if lease.is_held:
                lease.apply(AllocationEvent.RELEASED)
            self._go_on_finishing(now)
        elif event is AllocationEvent.FAILED:
            because = f": {report.reason}" if report.reason else " and gave no reason"
            says_step = re.search(r"\bin step \d", report.reason or "")
            at = "" if says_step else f" {self._at(lease, 0 if report.lost else 1)}"
            told = f"{lease.who} failed{at}{because}{silent()}"
            # While another takes over, all wait for it: what fails meanwhile may have waited for too long.
            if report.lost or self._is_handing_over:
                self._recover(lease, told, now)
            else:
                self.fail(told, now)
        elif event is AllocationEvent.RELEASED:
            because = f": {report.reason}" if report.reason else ""
            self._recover(lease, f"{lease.who} gave its place up {self._at(lease)}{because}{silent()}", now)
        else:
            self._advance(now)

    def _recover(self, lease: Lease, reason: str, now: Timestamp, *, counts: bool = True) -> None:
        """A process or an agent was lost: the job goes on with agents that live, or fails where it may not."""
        match after_loss(self._run, self.job, self.leases, lease, reason, counts=counts):
            case Fail(why):
                self.fail(why, now)
            case HandOver(restarts, left):
                self.leases.vacate(lease)
                self.vacant_since = now.seconds
                what = f"another worker takes its place; the job can recover {left} more times"
                self.log.say(f"{reason}; {what}", now, "warning")
                self.log.set(restarts=restarts, reason=reason)
            case PlaceAnew(restarts, left):
                done = self.leases.step
                self.log.set(restarts=restarts)
                self._place_anew(reason, now)
                first = self.memory.first_step
                again = max(0, done - first)
                how = f"goes on from step {first}" if self.memory.began_with else "begins again with step 0"
                what = f"{again} steps are done again" if again else "no step is done again"
                table = next((key.key for key in self.plan.keys if key.rows), None)
                if again and lease.kind is AgentKind.WORKER and table is not None:
                    what += f", as {table!r} is a table; snapshot_every_s bounds how many"
                self.log.say(f"the job {how}: {what}; it can recover {left} more times", now, "warning")

    @property
    def _is_handing_over(self) -> bool:
        """Whether a slot waits for a worker, or for it to begin."""
        is_late = any(worker.state in _BEGINNING for worker in self.leases.workers)
        return self.lacks_workers or (self.state is JobState.RUNNING and is_late)

    def _late_successor(self, now: Timestamp) -> Lease | None:
        """A worker that took a slot over, and has not begun for too long."""
        if now.seconds < self._refilled + self._limits.start_s or self._waits_for_silent:
            return None
        return next((worker for worker in self.leases.workers if worker.state in _BEGINNING), None)

    def _end_at(self, step: int, now: Timestamp) -> None:
        """The values after so many steps are the result. A run that goes on from the newest snapshot up to there brings
        them: it has the same bits."""
        self.memory.end = step
        self.snapshots.drop_after(step)
        self._run.plan = self.plan.model_copy(update={"steps": step})
        newest = self.snapshots.newest
        first = 0 if newest is None else newest.step
        how = "its result is brought" if first == step else f"it is trained again from step {first} up to there"
        self._place_anew(f"stopped at step {step}: {self.memory.stopping}; {how}", now, JobEvent.STOPPED)
        self.log.set(snapshot=None if newest is None else newest.step)

    def _place_anew(self, reason: str, now: Timestamp, event: JobEvent = JobEvent.LOST) -> None:
        """Every lease is released, and the job is placed again, with its newest snapshot."""
        self._progress(now, last=True)
        self.memory.began_with = self.snapshots.newest
        self.snapshots.abandon()
        self.leases.clear()
        if self._scaling is not None:
            self._rescale(self._scaling)
        self._metrics.begin_anew()
        self._ending.begin_anew()
        first = self.memory.first_step
        if event is JobEvent.LOST and self.memory.end is None:
            later = {split for split, step in self.memory.measured.items() if step > first}
            kept = {name: one for name, one in self.job.metrics.items() if name.partition("/")[0] not in later}
            self.log.set(metrics=kept)
        self.log.begin_anew(first)
        self.memory.has_final = False
        self._store = None
        done = {"step": first, "epoch": self.plan.epochs_begun(first)}
        self.log.set(progress=self.job.progress.model_copy(update=done))
        self._move(event, now, reason)

    def _rescale(self, scaling: Scaling) -> None:
        """The job's processes are those of another plan from now on."""
        carried = {"given": self.plan.given, "resume": self.plan.resume}
        plan = scaling.plan.model_copy(update=carried)
        self._replanned = [Replan(self.job.id, scaling.spec, plan)]
        self._scaling = None
        self._run.parts.drop(SCALING)
        self._run.plan = plan.model_copy(update={"steps": self.plan.steps})
        self.log.set(workers=plan.workers, shards=plan.shards)

    def _advance(self, now: Timestamp) -> None:
        """Takes every step of the lifecycle that the leases' states allow."""
        if self.state is JobState.STARTING and self.leases.shards_are_ready:
            self.leases.tell(self.leases.workers)
            if all(worker.state in STARTED for worker in self.leases.workers):
                self.log.start_rate(now)
                self.snapshots.begin(now, wanted=self._changes_soon)
                self._move(JobEvent.STARTED, now, self._standing)
        if self.state is JobState.RUNNING and self.leases.workers_are_done:
            if (better := self._ending.better_than_the_last) is not None:
                self.memory.stopping = "its evaluation is the best"
                self._end_at(better, now)
                return
            self._progress(now, last=True)
            self._move(JobEvent.TRAINED, now)
            self.snapshots.finish()
        if self.state is JobState.FINISHING and self.memory.has_final and not self.snapshots.is_under_way:
            wrong = told_not_finite(self.job.metrics, self.memory.not_finite)
            self._move(JobEvent.KEPT, now, self._ending.why or (f"trained, but {wrong}" if wrong else None))

    def _move(self, event: JobEvent, now: Timestamp, reason: str | None = None) -> None:
        state = after(JOB_TRANSITIONS, self.state, event)
        if event in _ENDING:
            self._progress(now, last=True)
        if event is JobEvent.STARTED and self.job.started_at is None:
            self._ending.start(now)
        started = self.job.started_at or (now.at if event is JobEvent.STARTED else None)
        ended = now.at if event in _ENDING else None
        if event in _ENDING:
            self.leases.release()
            self.snapshots.end(keep=not self._discards)
            newest = self.snapshots.newest
            self.log.set(snapshot=None if newest is None else newest.step, snapshot_bytes=self.snapshots.nbytes)
        self._await(state, now)
        self.log.set(state=state, reason=reason, started_at=started, ended_at=ended, traffic=self.leases.traffic)
        self.log.append(StateChanged(state=state, reason=reason), now)

    def _await(self, state: JobState, now: Timestamp) -> None:
        """The deadline of a state. The last snapshot has one of its own."""
        keep_s = None if self.memory.has_final else self._limits.keep_s
        limit = {JobState.STARTING: self._limits.start_s, JobState.FINISHING: keep_s}.get(state)
        self._deadline = None if limit is None else now.seconds + limit

    def _at(self, lease: Lease, ahead: int = 0) -> str:
        """The last step that is known to be done, or the one `ahead` of it, for people."""
        if self.state in {JobState.PENDING, JobState.STARTING}:
            return "before the first step"
        step = lease.step if lease.kind is AgentKind.WORKER else self.leases.step
        return f"at step {min(step + ahead, self.plan.steps)} of {self.plan.steps}"

    def _go_on_finishing(self, now: Timestamp) -> None:
        """A job that has its last step behind it ends once its last snapshot is there, or will not come."""
        if self.state is JobState.FINISHING:
            self.log.add(self.snapshots.tick(now), now)
            self._advance(now)

    def _progress(self, now: Timestamp, *, last: bool = False) -> bool:
        return self.log.progress(self.leases.step, lambda: self.leases.traffic, now, last=last)


def _numbers(plan: JobPlan) -> str:
    """`4 workers, 2 shards`; one worker that keeps the values itself has no shard."""
    counts = [(plan.workers, "worker"), (plan.shards, "shard")]
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count)
