"""Trains one slot of a job: the loop over steps."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from dataclasses import dataclass, field

from weft.agent.transfer import UploadError
from weft.api.agent import SetDone
from weft_kvstore.errors import StoreError
from weft_worker.checkpointer import Checkpointer, pull_all
from weft_worker.engine.engine import Engine
from weft_worker.engine.serial import SerialEngine
from weft_worker.engine.work import Variable
from weft_worker.errors import StoppedError, WorkerError
from weft_worker.evaluation import Evaluation
from weft_worker.ordered_sets import BroughtSet, OrderedSets
from weft_worker.patience import patiently, result_of
from weft_worker.reports import RunReports
from weft_worker.run_store import RunStore
from weft_worker.schedule import Schedule
from weft_worker.settings import RunSettings
from weft_worker.sharded_store import ShardedStore
from weft_worker.task import Task
from weft_worker.training_steps import TrainingSteps
from weft_worker.value_setter import ValueSetter

SLOTS_DEADLINE_S = 3600.0
"""In async, for the slowest slot to come to its end once this one has: each goes at its own speed."""


class RunSignals:
    """What others ask of a run, from any thread; the run looks at step boundaries."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.upload = threading.Event()


@dataclass(frozen=True, slots=True)
class Training:
    """All that a slot's run needs, bound and open. `run` is called once, on a thread of its own."""

    task: Task
    schedule: Schedule
    steps: TrainingSteps
    engine: Engine
    store: RunStore
    evaluation: Evaluation | None
    checkpointer: Checkpointer
    setter: ValueSetter
    sets: OrderedSets
    reports: RunReports
    signals: RunSignals
    settings: RunSettings
    in_flight: deque[Variable] = field(default_factory=deque)
    """What stands for the end of each step that is not waited for yet, in order."""

    def run(self) -> None:
        """Trains to the last step. When it returns, every barrier is acknowledged and the keeper has uploaded.

        Raises StoppedError when told to stop; WorkError, which names operator and step; StoreError, DataError,
        EngineTimeoutError, UploadError, DownloadError, TensorFileError.
        """
        try:
            first = self._first_step()
            self._begin(first)
            self._train(first)
            self._end()
        finally:
            self.reports.end()

    def _first_step(self) -> int:
        """The first that this run does. One that takes over a slot does the step again that was under way, which is the
        version that the shards have of all that the slot sends: some of it may be a step further. What the slot had
        pushed of that step before is not taken twice."""
        first = self.task.first_step
        if self.task.allocation.incarnation == 1:
            return first
        timeout_s = self.settings.wait_timeout_s
        keys = sorted(self.task.contributions.sent)
        what = f"slot {self.task.allocation.slot}: which step is under way"
        if not isinstance(self.store, ShardedStore):
            raise WorkerError(f"{what}: only shards know, and the job has none")
        asked = self.store.pull_settled(keys, first)
        under_way = int(result_of(asked, what, timeout_s).lowest.min())
        if under_way > first and not self.steps.scale.is_fixed:
            outcome = result_of(self.store.barrier(under_way - 1, []), f"{what}, its loss scale", timeout_s)
            assert outcome is not None
            self.steps.scale.go_on_after(outcome)
        return under_way

    def _begin(self, first: int) -> None:
        """Has the given first values there: the keeper sets them, the others wait. A run that goes on has its values;
        what was evaluated at its first step may not have been told."""
        allocation = self.task.allocation
        if self.task.snapshot is not None or allocation.incarnation > 1:
            if first and self.schedule.at(first - 1).evaluates:
                self._evaluate(first)
        elif allocation.keeper and allocation.given:
            with tempfile.TemporaryFile() as file:
                self.reports.download("given", file, self.signals.stop)
                self.setter.set_all(file, 0, allocation.given)
        else:
            self.setter.await_given(self._warn)

    def _train(self, first: int) -> None:
        most = 1 if isinstance(self.engine, SerialEngine) else self.settings.steps_in_flight
        for step in range(first, self.task.allocation.steps):
            self._boundary(step)
            self._await_steps(most - 1)
            current = self.schedule.at(step)
            self.in_flight.append(self.steps.push(current))
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
        settled, timeout_s = last or self.task.settles, self.settings.wait_timeout_s
        values = pull_all(self.evaluation.reads, self.evaluation.keys, finished, timeout_s, settled=settled)
        taken, bad_data = self.evaluation.run(values, finished, settled=last)
        self.reports.metrics("evaluate", finished, taken, bad_data)

    def _upload(self, finished: int, *, final: bool) -> None:
        settled = final or self.task.settles
        document = self.checkpointer.document(finished, settled=settled, with_state=bool(self.checkpointer.state))
        self.reports.upload(document, finished, final=final)

    def _await_steps(self, most: int) -> None:
        """Waits until at most `most` steps are in flight. Raises for the first that fails, whatever comes after it."""
        while len(self.in_flight) > most:
            self.engine.wait([self.in_flight.popleft()], self.settings.wait_timeout_s)

    def _settle(self) -> None:
        """Waits until nothing is in flight: first for the steps, since one that comes after a failed one may wait for
        what no slot sends any more."""
        self._await_steps(0)
        self.engine.wait_all(self.settings.wait_timeout_s)

    def _settle_slots(self) -> None:
        """In async, waits until every slot has done its last step."""
        if not self.task.is_async:
            return
        steps, pace = self.task.allocation.steps, self.task.pace
        patiently(
            lambda: pace.reached(self.store, steps, settled=True),
            f"worker {self.task.allocation.slot} waits for the others' last steps",
            timeout_s=self.settings.wait_timeout_s,
            deadline_s=SLOTS_DEADLINE_S,
            tell=self._warn,
        )

    def _warn(self, message: str) -> None:
        self.reports.log("warning", message)
