"""Pushes one run of a plan to the engine, node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.types import BATCH
from weft_graph.weft_domain import FETCH, SEND, SEND_BARRIER
from weft_kernels.kernel import Array, KernelContext
from weft_kvstore.store import Store
from weft_worker.engine.face import Engine
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.errors import ValueMismatchError
from weft_worker.plan import BoundNode, Plan
from weft_worker.table import ValueTable, described

COMPUTE = "compute"
IO = "io"


@dataclass(frozen=True, slots=True)
class StepContext:
    """Which step is run, and for which samples: see `KernelContext`. `label` is what messages call it."""

    step: int
    first_sample: int
    seed: int
    label: str


@dataclass(frozen=True, slots=True)
class PushedStep:
    """A run of a plan that the engine has. `outputs` are free once the outputs exist, `sent` once the barrier is."""

    plan: Plan
    table: ValueTable
    outputs: tuple[Variable, ...]
    sent: tuple[Variable, ...]

    def scalars(self) -> dict[str, float]:
        """The outputs, each a scalar, which are released. To be called by work that reads `outputs`."""
        values = {name: float(self.table.get(place)) for name, place in self.plan.outputs.items()}
        self.table.release(self.plan.outputs.values())
        return values


class StepPusher:
    """Turns runs of plans into the engine's work. `store` carries out communication."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    def push(
        self,
        plan: Plan,
        context: StepContext,
        feeds: Mapping[str, Array],
        *,
        fetched: Mapping[str, Array] | None = None,
        nothing: Sequence[str] = (),
    ) -> PushedStep:
        """Pushes every node. With `fetched`, keys' values come from there instead of the store.

        `feeds` has an array for each of the plan's inputs; `nothing` are keys that the barrier declares nothing for.
        """
        run = _Run(self._engine, self._store, plan, context, tuple(nothing))
        for name, place in plan.inputs.items():
            run.table.put(place, feeds[name])
        for bound in plan.nodes:
            if bound.kernel is not None:
                run.compute(bound)
            elif bound.node.op_type == FETCH and fetched is not None:
                run.fill(bound, fetched)
            else:
                _COMMUNICATION[bound.node.op_type](run, bound)
        return PushedStep(plan, run.table, run.variables_of(plan.outputs.values()), run.barriers)

    def push_absence(self, step: int, nothing: Sequence[str], pace: str, label: str) -> Variable:
        """Declares nothing for every key of `nothing`, for a slot that has no samples of the step.

        First it waits for the step's version of the key `pace`, whose value is dropped: a slot that computes nothing
        would otherwise run ahead of the others, further than the store lets it.
        """
        reached, barrier = self._engine.variable(f"{pace} of {label}"), self._engine.variable(f"barrier of {label}")

        def wait(on_complete: OnComplete) -> None:
            self._store.pull(pace, step).add_done_callback(_completing(on_complete))

        def declare(on_complete: OnComplete) -> None:
            self._store.barrier(step, nothing).add_done_callback(_completing(on_complete))

        self._engine.push_async(wait, [], [reached], lane=IO, name=f"Fetch {pace!r} of {label}")
        self._engine.push_async(declare, [reached], [barrier], lane=IO, name=f"SendBarrier of {label}")
        return barrier


class _Run:
    """One run of a plan while it is being pushed: its values, and the variables that stand for them."""

    def __init__(
        self, engine: Engine, store: Store, plan: Plan, context: StepContext, nothing: tuple[str, ...]
    ) -> None:
        self.table = ValueTable(plan)
        self.barriers: tuple[Variable, ...] = ()
        self._engine = engine
        self._store = store
        self._plan = plan
        self._context = context
        self._nothing = nothing
        self._variables: dict[int, Variable] = {}
        self._sent: list[Variable] = []

    def variables_of(self, places: Iterable[int | None]) -> tuple[Variable, ...]:
        """The variables of the values that work makes, each once; what is fed or constant is there already."""
        return tuple(dict.fromkeys(self._variables[place] for place in places if place in self._variables))

    def fill(self, bound: BoundNode, fetched: Mapping[str, Array]) -> None:
        for place in bound.outputs:
            if place is not None:
                self.table.put(place, fetched[bound.key])

    def compute(self, bound: BoundNode) -> None:
        context = KernelContext(
            bound.node.name,
            seed=self._context.seed,
            step=self._context.step,
            first_sample=self._context.first_sample,
            samples=self._plan.dims.get(BATCH),
            asked=bound.node.outputs,
        )
        computation = _Computation(bound, self.table, context)
        self._engine.push(
            computation.run,
            self.variables_of(bound.inputs),
            self._define(bound),
            lane=COMPUTE,
            name=self._name(bound),
            describe=computation.describe,
        )

    def fetch(self, bound: BoundNode) -> None:
        (place,) = bound.outputs
        assert place is not None

        def start(on_complete: OnComplete) -> None:
            future = self._store.pull(bound.key, self._context.step)
            future.add_done_callback(_completing(on_complete, lambda array: self.table.put(place, array)))

        self._push_io(bound, start, (), self._define(bound))

    def send(self, bound: BoundNode) -> None:
        (place,) = bound.inputs
        assert place is not None

        def start(on_complete: OnComplete) -> None:
            gradient = np.asarray(self.table.get(place), order="C")
            future = self._store.push(bound.key, self._context.step, gradient)
            self.table.release([place])
            future.add_done_callback(_completing(on_complete))

        sent = self._engine.variable(f"sent {bound.key}")
        self._sent.append(sent)
        self._push_io(bound, start, self.variables_of([place]), (sent,))

    def barrier(self, bound: BoundNode) -> None:
        def start(on_complete: OnComplete) -> None:
            self._store.barrier(self._context.step, self._nothing).add_done_callback(_completing(on_complete))

        barrier = self._engine.variable(f"barrier of {self._context.label}")
        self.barriers = (*self.barriers, barrier)
        self._push_io(bound, start, tuple(self._sent), (barrier,))

    def _push_io(
        self,
        bound: BoundNode,
        start: Callable[[OnComplete], None],
        reads: tuple[Variable, ...],
        writes: tuple[Variable, ...],
    ) -> None:
        name = self._name(bound)
        self._engine.push_async(start, reads, writes, lane=IO, name=name, priority=bound.priority)

    def _define(self, bound: BoundNode) -> tuple[Variable, ...]:
        for place in bound.outputs:
            if place is not None:
                self._variables[place] = self._engine.variable(self._plan.names[place])
        return self.variables_of(bound.outputs)

    def _name(self, bound: BoundNode) -> str:
        what = f"{bound.key!r}" if bound.key else f"{bound.node.name!r}"
        return f"{bound.node.op_type} {what} of {self._context.label}"


_COMMUNICATION: Mapping[str, Callable[[_Run, BoundNode], None]] = {
    FETCH: _Run.fetch,
    SEND: _Run.send,
    SEND_BARRIER: _Run.barrier,
}


@dataclass(frozen=True, slots=True)
class _Computation:
    """A node's kernel and where its values are."""

    bound: BoundNode
    table: ValueTable
    context: KernelContext

    def run(self) -> None:
        bound = self.bound
        assert bound.kernel is not None
        inputs = self.table.take(bound.inputs)
        outputs = bound.kernel(self.context, inputs, bound.attributes)
        if len(outputs) < len(bound.outputs):
            raise ValueMismatchError(f"the kernel gave {len(outputs)} outputs, the node names {len(bound.outputs)}")
        for place, array in zip(bound.outputs, outputs, strict=False):
            if place is not None:
                self.table.put(place, np.asarray(array))
        self.table.release(bound.inputs)

    def describe(self) -> str:
        return described(self.table.take(self.bound.inputs))


def _completing(on_complete: OnComplete, keep: Callable[[Any], None] | None = None) -> Callable[[Future[Any]], None]:
    """A future's callback that hands its value to `keep` and its end to `on_complete`."""

    def done(future: Future[Any]) -> None:
        error = CancelledError("the store gave it up") if future.cancelled() else future.exception()
        if error is None and keep is not None:
            try:
                keep(future.result())
            except ValueMismatchError as mismatch:
                error = mismatch
        on_complete(error)

    return done
