"""Pushes the steps of a slot's training, and the work that ends each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from weft.agent.trace import TraceRecorder
from weft.api.trace import SpanKind
from weft_graph.program import LOSS_SCALE, Update
from weft_kernels.kernel import Array
from weft_kvstore.description.records import LossScaling
from weft_kvstore.store import LossScale, StepOutcome, loss_scale_of
from weft_worker.bind import Binder
from weft_worker.engine.engine import Engine
from weft_worker.engine.work import Variable
from weft_worker.errors import WorkerError
from weft_worker.feed import Feeder
from weft_worker.metrics import MetricSums
from weft_worker.reports import RunReports
from weft_worker.schedule import Schedule, ScheduledStep, parts_of
from weft_worker.step.accumulation import Accumulation, StepPart
from weft_worker.step.pusher import StepPusher
from weft_worker.step.run import COMPUTE
from weft_worker.step.values import Ending, LateFeed, PushedStep, StepContext
from weft_worker.task import Task

GRADIENT_NORM = "gradient_norm"
LOSS_SCALE_METRIC = "loss_scale"
SKIPPED = "skipped_steps"
"""Metrics of jobs whose steps are committed, beside the graph's own."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSteps:
    """The train program with its samples, and what steps leave for those after: `sums` of metrics and the loss `scale`.
    `order` is the variable by which the works that end steps follow each other."""

    task: Task
    schedule: Schedule
    binder: Binder
    feeder: Feeder
    engine: Engine
    pusher: StepPusher
    reports: RunReports
    sums: MetricSums
    scale: StepLossScale
    order: Variable
    scale_dtype: np.dtype[Any] | None
    """Of the input that scales the loss, where the program has one."""
    trace: TraceRecorder | None = None
    shares: dict[float, Array] = field(default_factory=dict)
    """Arrays of that input where the loss scale is fixed."""
    skipped: list[int] = field(default_factory=list)
    """Steps whose gradient was not finite, and that changed nothing, since this process began."""
    bad_data: list[str] = field(default_factory=list)
    """What the data has that is not finite, of the first step whose metrics are not; empty before there is one."""

    @classmethod
    def of(
        cls, task: Task, schedule: Schedule, binder: Binder, feeder: Feeder, *, pusher: StepPusher, reports: RunReports
    ) -> TrainingSteps:
        """Before the first step."""
        commit, engine = task.description.commit, pusher.engine
        first = None if task.snapshot is None else loss_scale_of(task.snapshot)
        scale = StepLossScale(None if commit is None else commit.loss_scaling, first)
        sums, order = MetricSums(binder.program.outputs), engine.variable("metric sums")
        trace = TraceRecorder.of(task.allocation.trace, "worker", task.allocation.slot)
        dtype = next((each.type.dtype.numpy for each in binder.program.inputs if each.name == LOSS_SCALE), None)
        return cls(task, schedule, binder, feeder, engine, pusher, reports, sums, scale, order, dtype, trace)

    def push(self, current: ScheduledStep) -> Variable:
        """Pushes a step and the work that ends it; returns what that work writes last."""
        label = f"step {current.step + 1}"
        done = self.engine.variable(label)
        if len(current.rows) == 0:
            ending = Ending()
            keys = self.task.contributions.keys
            barrier = self.pusher.push_absence(current.step, keys, self.task.pace, label, ending)
            self._push_end(current, None, ending=ending, reads=(barrier,), done=done)
            return done
        parts = parts_of(current, self.schedule.accumulate)
        shared = None
        if len(parts) > 1:
            means = frozenset(key.key for key in self.task.keys if key.update is Update.MEAN)
            shared = Accumulation(len(parts), means)
        for number, part in enumerate(parts):
            pushed = self._push_part(part, None if shared is None else StepPart(shared, number))
            if number + 1 < len(parts):
                self._push_sums(part, pushed)
        self._push_end(part, pushed, ending=pushed.ending, reads=(*pushed.outputs, *pushed.sent), done=done)
        return done

    def _push_part(self, part: ScheduledStep, of: StepPart | None) -> PushedStep:
        label = f"step {part.step + 1}" if of is None else f"step {part.step + 1}, part {of.number}"
        locate = partial(self.feeder.locate, part.rows)
        trace = self.trace if self.trace is not None and self.trace.covers(part.step + 1) else None
        allocation = self.task.allocation
        context = StepContext(
            part.step,
            part.first_sample,
            allocation.seed,
            label,
            locate=locate,
            trace=trace,
            goes_on=part.step + 1 < allocation.steps,
        )
        plan = self.binder.plan(self.feeder.dims(len(part.rows)))
        with context.span(SpanKind.DATA, f"read {len(part.rows)} samples"):
            feeds, late = self._feeds(part)
        return self.pusher.push(plan, context, feeds, late=late, part=of)

    def _feeds(self, current: ScheduledStep) -> tuple[Mapping[str, Array], LateFeed | None]:
        """The step's inputs, and the one that the end of the step before decides."""
        feeds, dtype = self.feeder.read(current.rows), self.scale_dtype
        if dtype is None:
            return feeds, None
        if self.scale.is_fixed:
            share = self.shares.get(current.share)
            if share is None:
                share = self.shares[current.share] = np.asarray(current.share, dtype=dtype)
            feeds[LOSS_SCALE] = share
            return feeds, None

        def read() -> Array:
            return np.asarray(current.share * self.scale.scale, dtype=dtype)

        return feeds, LateFeed(LOSS_SCALE, (self.order,), read)

    def _push_sums(self, part: ScheduledStep, pushed: PushedStep) -> None:
        """Adds the metrics of a part that is not the step's last."""

        def add() -> None:
            self._add(part, pushed)

        name = f"metrics of a part of step {part.step + 1}"
        self.engine.push(add, pushed.outputs, (self.order,), lane=COMPUTE, name=name)

    def _add(self, part: ScheduledStep, pushed: PushedStep) -> None:
        if not self.sums.add(pushed.scalars(), len(part.rows), part.step + 1) and not self.bad_data:
            self.bad_data.append(self.feeder.not_finite(part.rows))

    def _push_end(
        self,
        current: ScheduledStep,
        pushed: PushedStep | None,
        *,
        ending: Ending,
        reads: tuple[Variable, ...],
        done: Variable,
    ) -> None:
        finished = current.step + 1

        def end() -> None:
            if pushed is not None:
                self._add(current, pushed)
            self._note(ending)
            if current.reports:
                self.reports.metrics("train", finished, self.sums.take(), "".join(self.bad_data))
            self.sums.mark()
            self.reports.step(finished, last=finished == self.task.allocation.steps)
            # What the last traced step sent is there once the next one has ended, which there always is.
            if self.trace is not None and finished == self.trace.last + 1:
                self.reports.trace(self.trace)

        self.engine.push(end, reads, (self.order, done), lane=COMPUTE, name=f"the end of step {finished}")

    def _note(self, ending: Ending) -> None:
        """What the slots agreed on of a step, and the loss scale that follows from it."""
        outcome = ending.outcome
        if outcome is None:
            return
        if outcome.finite:
            self.sums.note(GRADIENT_NORM, outcome.norm)
        message = self.scale.follow(outcome)
        commit = self.task.description.commit
        if commit is not None and commit.skip and self.scale.is_fixed:
            if not outcome.finite:
                self.sums.drop()
                self.skipped.append(outcome.step + 1)
                message = _skipped_message(self.skipped)
            self.sums.note(SKIPPED, len(self.skipped))
        if message is not None and self.task.allocation.keeper:
            self.reports.log("warning", message)
        if not self.scale.is_fixed:
            self.sums.note(LOSS_SCALE_METRIC, self.scale.scale)


def _skipped_message(skipped: list[int]) -> str | None:
    """A line at the first step that is skipped, the second, the fourth, ...: there may be as many as steps."""
    count = len(skipped)
    if count & (count - 1):
        return None
    return f"step {skipped[-1]} was skipped: its gradient is not finite; {count} skipped so far"


# --- The loss scale of each step, as a worker follows it: what slots agreed on of the steps before decides it ---------


class StepLossScale:
    """`scale` is that of the first step whose outcome has not been told. Told in the order of steps, by one thread at a
    time: the work that ends a step."""

    def __init__(self, scaling: LossScaling | None, first: LossScale | None = None) -> None:
        """`first`: that of the first step, where it is not the first of the job."""
        self._scaling = scaling
        self._now = first or LossScale(1.0 if scaling is None else scaling.initial)

    def go_on_after(self, outcome: StepOutcome) -> None:
        """The first step whose outcome will be told is the one after this one's."""
        if self._scaling is not None:
            self._now = outcome.scale.after(finite=outcome.finite, scaling=self._scaling)

    @property
    def is_fixed(self) -> bool:
        """Whether no step changes it."""
        return self._scaling is None

    @property
    def scale(self) -> float:
        return self._now.scale

    def follow(self, outcome: StepOutcome) -> str | None:
        """A step has ended. What people are to hear of it, if anything. Raises WorkerError where the shards have
        divided by another scale: gradients would be wrong by a factor."""
        if self._scaling is None:
            return None
        if outcome.loss_scale != self.scale:
            message = f"step {outcome.step + 1}: the shards divided by the loss scale {outcome.loss_scale}"
            raise WorkerError(f"{message}, this worker multiplied by {self.scale}")
        self._now = self._now.after(finite=outcome.finite, scaling=self._scaling)
        if outcome.finite:
            return None
        return f"step {outcome.step + 1} was skipped: its gradient is not finite; the loss scale is {self.scale:g} now"
