"""Trains one slot of a job: the loop over steps."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.api.agent import SetDone
from weft.api.transfer import UploadError
from weft_graph.program import LOSS_SCALE, Update
from weft_kernels.kernel import Array
from weft_kvstore.store import Store, StoreError
from weft_worker.bind import Binder
from weft_worker.course import Course, CourseStep, parts_of
from weft_worker.engine.face import Engine
from weft_worker.engine.work import Variable
from weft_worker.errors import StoppedError, WorkerError
from weft_worker.evaluation import Evaluation
from weft_worker.feed import Feeder
from weft_worker.keeping import Keeping, pull_all
from weft_worker.metrics import MetricSums
from weft_worker.ordered_sets import BroughtSet, OrderedSets
from weft_worker.patience import patiently
from weft_worker.reports import RunReports
from weft_worker.settings import RunSettings
from weft_worker.step.accumulation import Accumulation, StepPart
from weft_worker.step.lanes import COMPUTE
from weft_worker.step.pusher import StepPusher
from weft_worker.step.values import Ending, LateFeed, PushedStep, StepContext
from weft_worker.step_loss_scale import StepLossScale
from weft_worker.task import Task
from weft_worker.value_setter import ValueSetter

SLOTS_DEADLINE_S = 3600.0
"""In async, for the slowest slot to come to its end once this one has: each goes at its own speed."""


class RunSignals:
    """What others ask of a run, from any thread; the run looks at step boundaries."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.upload = threading.Event()


GRADIENT_NORM = "gradient_norm"
LOSS_SCALE_METRIC = "loss_scale"
"""Metrics of jobs whose steps are committed, beside the graph's own."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """What the work that ends a step writes; `order` is the variable by which these works follow each other."""

    sums: MetricSums
    order: Variable
    scale: StepLossScale


@dataclass(frozen=True, slots=True)
class Training:
    """All that a slot's run needs, bound and open. `run` is called once, on a thread of its own."""

    task: Task
    course: Course
    binder: Binder
    feeder: Feeder
    engine: Engine
    store: Store
    pusher: StepPusher
    evaluation: Evaluation | None
    keeping: Keeping
    setter: ValueSetter
    sets: OrderedSets
    reports: RunReports
    signals: RunSignals
    settings: RunSettings

    def run(self) -> None:
        """Trains to the last step. When it returns, every barrier is acknowledged and the keeper has uploaded.

        Raises StoppedError when told to stop; WorkError, which names operator and step; StoreError, DataError,
        EngineTimeoutError, UploadError, DownloadError, TensorFileError.
        """
        try:
            self._begin()
            self._steps()
            self._end()
        finally:
            self.reports.traffic()

    def _begin(self) -> None:
        """Has the given first values there: the keeper sets them, the others wait."""
        allocation = self.task.allocation
        if allocation.keeper and allocation.given:
            with tempfile.TemporaryFile() as file:
                self.reports.download("given", file, self.signals.stop)
                self.setter.set_all(file, 0, allocation.given)
        else:
            self.setter.await_given(self._warn)

    def _steps(self) -> None:
        sums = MetricSums(self.binder.program.outputs)
        order = self.engine.variable("metric sums")
        commit = self.task.description.commit
        scale = StepLossScale(None if commit is None else commit.loss_scaling)
        ends = _Ends(sums, order, scale)
        in_flight: deque[Variable] = deque()
        most = 1 if self.settings.serial else self.settings.steps_in_flight
        for step in range(self.task.allocation.steps):
            self._boundary(step)
            while len(in_flight) >= most:
                self.engine.wait([in_flight.popleft()], self.settings.wait_timeout_s)
            current = self.course.at(step)
            in_flight.append(self._push(current, ends))
            if current.evaluates:
                self._evaluate(step + 1)

    def _end(self) -> None:
        steps = self.task.allocation.steps
        self._settle()
        if self.task.allocation.keeper:
            self._settle_slots()
            self._upload(steps, final=True)
        for number in self.sets.close():
            self.reports.set_done(SetDone(number=number, step=steps, error="the job has done its last step"))

    def _push(self, current: CourseStep, ends: _Ends) -> Variable:
        """Pushes a step and the work that ends it; returns what that work writes last."""
        label = f"step {current.step}"
        done = self.engine.variable(label)
        if len(current.rows) == 0:
            ending = Ending()
            keys = self.task.contributions.keys
            barrier = self.pusher.push_absence(current.step, keys, self.task.pace, label, ending)
            self._push_end(current, ends, None, ending=ending, reads=(barrier,), done=done)
            return done
        parts = parts_of(current, self.course.accumulate)
        shared = None
        if len(parts) > 1:
            means = frozenset(key.key for key in self.task.keys if key.update is Update.MEAN)
            shared = Accumulation(len(parts), means)
        for number, part in enumerate(parts):
            pushed = self._push_part(part, ends, None if shared is None else StepPart(shared, number))
            if number + 1 < len(parts):
                self._push_sums(part, ends, pushed)
        self._push_end(part, ends, pushed, ending=pushed.ending, reads=(*pushed.outputs, *pushed.sent), done=done)
        return done

    def _push_part(self, part: CourseStep, ends: _Ends, of: StepPart | None) -> PushedStep:
        label = f"step {part.step}" if of is None else f"step {part.step}, part {of.number}"
        context = StepContext(part.step, part.first_sample, self.task.allocation.seed, label)
        plan = self.binder.plan(self.feeder.dims(len(part.rows)))
        feeds, late = self._feeds(part, ends)
        return self.pusher.push(plan, context, feeds, nothing=self.task.contributions.nothing, late=late, part=of)

    def _push_sums(self, part: CourseStep, ends: _Ends, pushed: PushedStep) -> None:
        """Adds the metrics of a part that is not the step's last."""

        def add() -> None:
            self._add(part, ends.sums, pushed)

        self.engine.push(
            add, pushed.outputs, (ends.order,), lane=COMPUTE, name=f"metrics of a part of step {part.step}"
        )

    def _add(self, part: CourseStep, sums: MetricSums, pushed: PushedStep) -> None:
        means = pushed.scalars()
        sums.add(means, len(part.rows))
        self.reports.check_finite(self.task.allocation.slot, part.step + 1, means)

    def _push_end(
        self,
        current: CourseStep,
        ends: _Ends,
        pushed: PushedStep | None,
        *,
        ending: Ending,
        reads: tuple[Variable, ...],
        done: Variable,
    ) -> None:
        finished, sums = current.step + 1, ends.sums

        def end() -> None:
            if pushed is not None:
                self._add(current, sums, pushed)
            self._note(ends, ending)
            if current.reports:
                self.reports.metrics("train", finished, sums.take())
            self.reports.step(finished, last=finished == self.task.allocation.steps)

        self.engine.push(end, reads, (ends.order, done), lane=COMPUTE, name=f"the end of step {current.step}")

    def _note(self, ends: _Ends, ending: Ending) -> None:
        """What the slots agreed on of a step, and the loss scale that follows from it."""
        outcome = ending.outcome
        if outcome is None:
            return
        if outcome.finite:
            ends.sums.note(GRADIENT_NORM, outcome.norm)
        told = ends.scale.told(outcome)
        if told is not None and self.task.allocation.keeper:
            self._warn(told)
        if not ends.scale.is_fixed:
            ends.sums.note(LOSS_SCALE_METRIC, ends.scale.scale)

    def _feeds(self, current: CourseStep, ends: _Ends) -> tuple[Mapping[str, Array], LateFeed | None]:
        """The step's inputs, and the one that the end of the step before decides."""
        feeds = dict(self.feeder.read(current.rows))
        dtype = next((each.type.dtype.numpy for each in self.binder.program.inputs if each.name == LOSS_SCALE), None)
        if dtype is None:
            return feeds, None
        if ends.scale.is_fixed:
            return {**feeds, LOSS_SCALE: np.asarray(current.share, dtype=dtype)}, None

        def read() -> Array:
            return np.asarray(current.share * ends.scale.scale, dtype=dtype)

        return feeds, LateFeed(LOSS_SCALE, (ends.order,), read)

    def _boundary(self, finished: int) -> None:
        """Between two steps: stops, or brings the values as they are now, where that was asked for."""
        if self.signals.stop.is_set():
            raise StoppedError(f"stopped after {finished} steps")
        for brought in self.sets.take():
            self._set(brought, finished + 1)
        if self.signals.upload.is_set():
            self.signals.upload.clear()
            self._settle()
            try:
                self._upload(finished, final=False)
            except UploadError as error:
                # Whoever asked can ask again; training does not depend on it.
                self.reports.log("warning", f"the parameters at step {finished} were not brought: {error}")

    def _set(self, brought: BroughtSet, version: int) -> None:
        """Sets ordered parameters. This slot has not pushed the step before `version`, so nobody has begun the next."""
        error: str | None = brought.error or None
        if brought.file is not None:
            try:
                with brought.file:
                    self.setter.set_all(brought.file, version)
            except (WorkerError, StoreError, OSError) as raised:
                # Whoever ordered it is told; where the store itself is lost, the next step says so.
                error = f"{type(raised).__name__}: {raised}"
        self.reports.set_done(SetDone(number=brought.number, step=version, error=error))

    def _evaluate(self, finished: int) -> None:
        """Evaluates with the parameters after `finished` steps: no shard can pass them before this slot goes on.

        In async the others do not wait: it looks at what is there, at the run's end once they have come to theirs.
        """
        if self.evaluation is None:
            return
        self._settle()
        last = finished == self.task.allocation.steps
        if last:
            self._settle_slots()
        values = pull_all(
            self.evaluation.reads, self.evaluation.keys, finished, self.settings.wait_timeout_s, settled=last
        )
        self.reports.metrics("evaluate", finished, self.evaluation.run(values, finished, settled=last))

    def _upload(self, finished: int, *, final: bool) -> None:
        document = self.keeping.document(finished, settled=final, with_state=bool(self.keeping.state))
        self.reports.upload(document, finished, final=final)

    def _settle(self) -> None:
        """Waits until nothing is in flight."""
        self.engine.wait_all(self.settings.wait_timeout_s)

    def _settle_slots(self) -> None:
        """In async, waits until every slot has done its last step."""
        if not self.task.is_async:
            return
        steps, pace = self.task.allocation.steps, self.task.pace
        patiently(
            lambda: pace.reached(self.store, steps, settled=True),
            f"slot {self.task.allocation.slot} waits for the others' last steps",
            timeout_s=self.settings.wait_timeout_s,
            deadline_s=SLOTS_DEADLINE_S,
            tell=self._warn,
        )

    def _warn(self, message: str) -> None:
        self.reports.log("warning", message)
