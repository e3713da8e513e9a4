"""Looks at held-out data with the parameters of one version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft_data.source import Rows
from weft_graph.program import Update
from weft_kernels.averaging import AVERAGE
from weft_kernels.kernel import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.futures import joined
from weft_worker.bind import Binder
from weft_worker.device import Device
from weft_worker.engine.engine import Engine
from weft_worker.engine.work import Variable
from weft_worker.feed import Feeder
from weft_worker.metrics import MetricSums, TakenSums
from weft_worker.run_store import Readable, RunStore
from weft_worker.schedule import Schedule
from weft_worker.step.pusher import StepPusher
from weft_worker.step.run import COMPUTE
from weft_worker.step.values import PushedStep, StepContext
from weft_worker.upload import Upload

BATCHES_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation program, this slot's rows, and what runs them."""

    binder: Binder
    feeder: Feeder
    schedule: Schedule
    engine: Engine
    pusher: StepPusher
    device: Device
    seed: int
    timeout_s: float
    reads: Readable
    """Where the parameters are read: the store, or the averages that it keeps."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the program reads whole."""
        sizes = self.schedule.evaluation_sizes()
        return tuple(self.binder.plan(self.feeder.dims(sizes[0])).fetched) if sizes else ()

    def run(self, values: Mapping[str, Array], finished: int, *, settled: bool) -> tuple[TakenSums, str]:
        """The sums over this slot's rows with `values` for the keys; zeros where the slot has none. With them, what the
        data has that is not finite, of the first batch whose metrics are not; else empty.

        Rows of tables are fetched for each batch, at version `finished`; `settled` as in the store's calls.

        Raises WorkError, EngineTimeoutError and DataError.
        """
        sums = MetricSums(self.binder.program.outputs)
        there = {key: self.device.upload(value) for key, value in values.items()}  # Once for all batches.
        order = self.engine.variable("evaluation sums")
        done: list[Variable] = []
        bad_data: list[str] = []

        def add(pushed: PushedStep, rows: Rows) -> None:
            if not sums.add(pushed.scalars(), len(rows), finished) and not bad_data:
                bad_data.append(self.feeder.not_finite(rows))

        for number, (first_sample, rows) in enumerate(self.schedule.evaluation_batches()):
            if number >= BATCHES_IN_FLIGHT:
                self.engine.wait([done[number - BATCHES_IN_FLIGHT]], self.timeout_s)
            label = f"evaluation batch {number} after step {finished}"
            locate = partial(self.feeder.locate, rows)
            context = StepContext(finished, first_sample, self.seed, label, settled, locate)
            done.append(self._push(rows, there, context, add, order))
        self.engine.wait_all(self.timeout_s)
        return sums.take(), "".join(bad_data)

    def _push(
        self,
        rows: Rows,
        values: Mapping[str, Array | Upload],
        context: StepContext,
        add: Callable[[PushedStep, Rows], None],
        order: Variable,
    ) -> Variable:
        plan = self.binder.plan(self.feeder.dims(len(rows)))
        pushed = self.pusher.push(plan, context, self.feeder.read(rows), fetched=values, reads=self.reads)
        done = self.engine.variable(context.label)
        name = f"sums of {context.label}"
        self.engine.push(partial(add, pushed, rows), pushed.outputs, [order, done], lane=COMPUTE, name=name)
        return done


# --- The store as it is read where the averages of weights stand in their place ---------------------------------------


class AveragedStore(Readable):
    """Reads of `store`: of a key that the rule updates its average, of any other the value. Both parts are of one
    version, which in sync stands until this slot goes on."""

    def __init__(self, store: RunStore, keys: Mapping[str, KeyDescription]) -> None:
        self._store = store
        self._averaged = frozenset(name for name, key in keys.items() if key.update is Update.RULE and key.slots)

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        value = self._store.pull(key, version, ids, settled=settled, state=state)
        if state or key not in self._averaged:
            return value
        both = [value, self._store.pull(key, version, ids, settled=settled, state=True)]
        return joined(both, lambda found: found[0] + found[1][AVERAGE])  # The weight, and how far its average is ahead.
