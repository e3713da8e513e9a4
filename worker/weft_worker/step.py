"""Pushes one run of a plan to the engine, node by node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from weft_graph.types import BATCH
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kernels.kernel import Array, KernelContext
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import Readable, Store
from weft_worker.accumulation import Accumulation, StepPart
from weft_worker.arena import Arenas
from weft_worker.computation import Computation
from weft_worker.device import CpuDevice, Device, after
from weft_worker.engine.face import Engine
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.errors import DeviceError
from weft_worker.pace import Pace, waiting_ids
from weft_worker.plan import BoundNode, Plan
from weft_worker.table import ValueTable

COMPUTE = "compute"
IO = "io"


@dataclass(frozen=True, slots=True)
class StepContext:
    """Which step is run, and for which samples: see `KernelContext`. `label` is what messages call it.

    The store's values are of version `step`; with `settled`, once every slot's steps before it are in.
    """

    step: int
    first_sample: int
    seed: int
    label: str
    settled: bool = False


@dataclass(slots=True)
class Ending:
    """What the slots agreed on of a step, once its barrier is; None where they agree on nothing."""

    outcome: StepOutcome | None = None

    def take(self, outcome: StepOutcome | None) -> None:
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class LateFeed:
    """An input that is known once what `after` stands for is done: `read` gives it then."""

    name: str
    after: tuple[Variable, ...]
    read: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class PushedStep:
    """A run of a plan that the engine has. `outputs` are free once the outputs exist, `sent` once the barrier is, and
    so is what `ending` has."""

    plan: Plan
    table: ValueTable
    outputs: tuple[Variable, ...]
    sent: tuple[Variable, ...]
    device: Device
    ending: Ending

    def scalars(self) -> dict[str, float]:
        """The outputs, each a scalar, which are released. To be called by work that reads `outputs`.

        Waits for the device: a number that people are to see must have been computed.
        """
        values = {name: float(self.device.to_host(self.table.get(place))) for name, place in self.plan.outputs.items()}
        self.table.release(self.plan.outputs.values())
        return values


class KeysThere(Protocol):
    """Keys whose values are kept in the device's memory, and need not come from the host."""

    @property
    def keys_there(self) -> Collection[str]: ...

    def pull_there(self, key: str, version: int) -> Future[Array]:
        """One of those keys' value at `version`, a copy on the device; as `Store.pull`."""


class StepPusher:
    """Turns runs of plans into the engine's work. `store` carries out communication, `device` computes; the values of
    `there` are on the device already. Values lie in an arena, unless `arena` is False: then each has its own memory.
    `checkpoint` is called between the turns of a graph's loops, and raises once the run is over."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        device: Device | None = None,
        *,
        there: KeysThere | None = None,
        arena: bool = True,
        checkpoint: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._device = device or CpuDevice()
        self._there = there
        self._checkpoint = checkpoint
        self.arenas = Arenas(engine, self._device) if arena else None

    def push(
        self,
        plan: Plan,
        context: StepContext,
        feeds: Mapping[str, Array],
        *,
        fetched: Mapping[str, Array] | None = None,
        nothing: Sequence[str] = (),
        late: LateFeed | None = None,
        part: StepPart | None = None,
        reads: Readable | None = None,
    ) -> PushedStep:
        """Pushes every node. With `fetched`, whole keys' values come from there instead of the store.

        `feeds` has an array for each of the plan's inputs but `late`; `nothing` are keys that the barrier declares
        nothing for. A `part` of a step is sent with the others by the last of them. `reads`
        stands in the place of the store where values are read.
        """
        memory, turn = None, None
        if self.arenas is not None:
            memory, turn = self._arena(self.arenas, plan, context)
        run = _Run(
            self._engine,
            self._store,
            self._device,
            plan,
            context,
            table=ValueTable(plan, memory),
            nothing=tuple(nothing),
            there=self._there,
            turn=() if turn is None else (turn,),
            checkpoint=self._checkpoint,
            part=part,
            reads=reads or self._store,
        )
        for name, place in plan.inputs.items():
            if late is not None and name == late.name:
                run.feed_late(place, late)
            else:
                run.table.put(place, self._device.to_device(feeds[name]))
        for bound in plan.nodes:
            if bound.kernel is not None:
                run.compute(bound)
            elif bound.node.op_type == FETCH and fetched is not None:
                run.fill(bound, fetched)
            else:
                _COMMUNICATION[bound.node.op_type](run, bound)
        return PushedStep(
            plan, run.table, run.variables_of(plan.outputs.values()), run.barriers, self._device, run.ending
        )

    def _arena(self, arenas: Arenas, plan: Plan, context: StepContext) -> tuple[Array | None, Variable]:
        """Memory for the plan's values, and its turn. Raises DeviceError, which names the largest of them."""
        nbytes = plan.placement.layout.arena_bytes
        try:
            return arenas.take(nbytes, COMPUTE)
        except MemoryError as error:
            largest = plan.placement.largest(plan.names)
            message = f"{context.label}: its values need {nbytes} bytes at once, which cannot be had ({error})"
            raise DeviceError(f"{message}; the largest are {largest}") from error

    def push_absence(
        self, step: int, nothing: Sequence[str], pace: Pace, label: str, ending: Ending | None = None
    ) -> Variable:
        """Declares nothing for every key of `nothing`, for a slot that has no samples of the step.

        First it waits for the step's version of the key `pace`, whose value is dropped: a slot that computes nothing
        would otherwise run ahead of the others, further than the store lets it.
        """
        reached, barrier = self._engine.variable(f"{pace.key} of {label}"), self._engine.variable(f"barrier of {label}")
        fetch = FETCH_ROWS if pace.rows else FETCH

        def wait(on_complete: OnComplete) -> None:
            pace.reached(self._store, step).add_done_callback(_completing(on_complete))

        def declare(on_complete: OnComplete) -> None:
            keep = None if ending is None else ending.take
            self._store.barrier(step, nothing).add_done_callback(_completing(on_complete, keep))

        self._engine.push_async(wait, [], [reached], lane=IO, name=f"{fetch} {pace.key!r} of {label}")
        self._engine.push_async(declare, [reached], [barrier], lane=IO, name=f"SendBarrier of {label}")
        return barrier


class _Run:
    """One run of a plan while it is being pushed: its values, and the variables that stand for them."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        device: Device,
        plan: Plan,
        context: StepContext,
        *,
        table: ValueTable,
        nothing: tuple[str, ...],
        there: KeysThere | None,
        turn: tuple[Variable, ...],
        checkpoint: Callable[[], None] | None,
        part: StepPart | None,
        reads: Readable,
    ) -> None:
        self.table = table
        self.barriers: tuple[Variable, ...] = ()
        self.ending = Ending()
        self._engine = engine
        self._store = store
        self._device = device
        self._plan = plan
        self._context = context
        self._nothing = nothing
        self._there = there
        self._turn = turn
        self._checkpoint = checkpoint
        self._part = part
        self._reads = reads
        self._variables: dict[int, Variable] = {}
        self._sent: list[Variable] = []

    def variables_of(self, places: Iterable[int | None]) -> tuple[Variable, ...]:
        """The variables of the values that work makes, each once; what is fed or constant is there already."""
        return tuple(dict.fromkeys(self._variables[place] for place in places if place in self._variables))

    def fill(self, bound: BoundNode, fetched: Mapping[str, Array]) -> None:
        for place in bound.outputs:
            if place is not None:
                self.table.put(place, self._device.to_device(fetched[bound.key]))

    def feed_late(self, place: int, late: LateFeed) -> None:
        """Puts an input that other work decides. What reads it waits, and nothing else."""
        made = self._variables[place] = self._engine.variable(late.name)

        def put() -> None:
            self.table.put(place, self._device.to_device(late.read()))

        self._engine.push(put, late.after, (made,), lane=COMPUTE, name=f"{late.name} of {self._context.label}")

    def compute(self, bound: BoundNode) -> None:
        context = KernelContext(
            bound.node.name,
            xp=self._device.xp,
            seed=self._context.seed,
            step=self._context.step,
            first_sample=self._context.first_sample,
            samples=self._plan.dims.get(BATCH),
            asked=bound.node.outputs,
            checkpoint=self._checkpoint,
        )
        computation = Computation(bound, self.table, context, self._device)
        taken = self._taken(bound)
        self._engine.push(
            computation.run,
            (*(read for read in self.variables_of(bound.inputs) if read not in taken), *self._turn),
            (*self._define(bound), *taken),
            lane=COMPUTE,
            name=self._name(bound),
            describe=computation.describe,
        )

    def _taken(self, bound: BoundNode) -> tuple[Variable, ...]:
        """The variables of the values whose memory the node's outputs take: work that writes them comes after all that
        reads them. What the IO lane reads lies elsewhere, so that nothing computed waits for the network here."""
        after = self._plan.placement.after
        places = (earlier for place in bound.outputs if place is not None for earlier in after.get(place, ()))
        return self.variables_of(places) if self._turn else ()

    def fetch(self, bound: BoundNode) -> None:
        (place,) = bound.outputs
        assert place is not None

        there = self._there if self._there is not None and bound.key in self._there.keys_there else None
        shared = self._part.accumulation if self._part is not None else None
        if shared is not None and bound.key in shared.fetched:
            self._fetched_before(bound, place, shared)
            return

        def keep(array: Array) -> None:
            value = array if there is not None else self._device.to_device(array)
            if shared is not None:
                shared.held[bound.key] = value
            self.table.put(place, value)

        def start(on_complete: OnComplete) -> None:
            pull = self._reads.pull if there is None else there.pull_there
            pull(bound.key, self._context.step).add_done_callback(_completing(on_complete, keep))

        self._push_io(bound, start, (), self._define(bound))
        if shared is not None:
            shared.fetched[bound.key] = self._variables[place]

    def _fetched_before(self, bound: BoundNode, place: int, shared: Accumulation) -> None:
        def put() -> None:
            self.table.put(place, shared.held[bound.key])

        reads, writes = (shared.fetched[bound.key],), self._define(bound)
        self._engine.push(put, reads, writes, lane=COMPUTE, name=self._name(bound))

    def send(self, bound: BoundNode) -> None:
        (place,) = bound.inputs
        assert place is not None

        if self._part is not None:
            self._send_sum(bound, place, self._part)
            return

        def start(on_complete: OnComplete) -> None:
            brought = self._device.bring([self.table.get(place)])
            self.table.release([place])
            pushed = after(brought, lambda host: self._store.push(bound.key, self._context.step, host[0]))
            pushed.add_done_callback(_completing(on_complete))

        self._push_send(bound, start, (place,))

    def _send_sum(self, bound: BoundNode, place: int, part: StepPart) -> None:
        """Adds the value to the parts' before; the last one sends what they add up to."""
        shared, key = part.accumulation, bound.key

        def add() -> None:
            with self._device.use():
                shared.add(key, self.table.get(place), self._device.xp)
            self.table.release([place])

        def start(on_complete: OnComplete) -> None:
            brought = self._device.bring([shared.take(key)])
            pushed = after(brought, lambda host: self._store.push(key, self._context.step, host[0]))
            pushed.add_done_callback(_completing(on_complete))

        self._push_sum(bound, add, (place,), part)
        if part.is_last:
            self._push_sent(bound, start, (shared.summed[key],))

    def _push_sum(self, bound: BoundNode, add: Callable[[], None], places: tuple[int, ...], part: StepPart) -> None:
        summed = part.accumulation.summed
        if bound.key not in summed:
            summed[bound.key] = self._engine.variable(f"sum of {bound.key}")
        name = f"sum of {bound.key!r} of {self._context.label}"
        self._engine.push(add, self.variables_of(places), (summed[bound.key],), lane=COMPUTE, name=name)

    def fetch_rows(self, bound: BoundNode) -> None:
        (ids,), (rows,) = bound.inputs, bound.outputs
        assert ids is not None
        assert rows is not None

        def pull(host: list[Array]) -> Future[Array]:
            context = self._context
            return self._reads.pull_rows(bound.key, waiting_ids(host[0]), context.step, settled=context.settled)

        def keep(array: Array) -> None:
            self.table.put(rows, self._device.to_device(array))

        def start(on_complete: OnComplete) -> None:
            brought = self._device.bring([self.table.get(ids)])
            self.table.release([ids])
            after(brought, pull).add_done_callback(_completing(on_complete, keep))

        self._push_io(bound, start, self.variables_of([ids]), self._define(bound))

    def send_rows(self, bound: BoundNode) -> None:
        ids, place = bound.inputs
        assert ids is not None
        assert place is not None
        if self._part is not None:
            self._send_row_sum(bound, ids, place, self._part)
            return

        def start(on_complete: OnComplete) -> None:
            brought = self._device.bring([self.table.get(ids), self.table.get(place)])
            self.table.release([ids, place])
            pushed = after(brought, lambda host: self._store.push_rows(bound.key, self._context.step, *host))
            pushed.add_done_callback(_completing(on_complete))

        self._push_send(bound, start, (ids, place))

    def _send_row_sum(self, bound: BoundNode, ids: int, place: int, part: StepPart) -> None:
        """Keeps the rows with the parts' before; the last one sends them all, and the store sums those of one id."""
        shared, key = part.accumulation, bound.key

        def add() -> None:
            with self._device.use():
                shared.add_rows(key, self.table.get(ids), self.table.get(place))
            self.table.release([ids, place])

        def push(host: list[Array]) -> Future[None]:
            half = len(host) // 2
            return self._store.push_rows(
                key, self._context.step, np.concatenate(host[:half]), np.concatenate(host[half:])
            )

        def start(on_complete: OnComplete) -> None:
            all_ids, all_rows = shared.take_rows(key)
            after(self._device.bring([*all_ids, *all_rows]), push).add_done_callback(_completing(on_complete))

        self._push_sum(bound, add, (ids, place), part)
        if part.is_last:
            self._push_sent(bound, start, (shared.summed[key],))

    def barrier(self, bound: BoundNode) -> None:
        if self._part is not None and not self._part.is_last:
            return

        def start(on_complete: OnComplete) -> None:
            done = _completing(on_complete, self.ending.take)
            self._store.barrier(self._context.step, self._nothing).add_done_callback(done)

        barrier = self._engine.variable(f"barrier of {self._context.label}")
        self.barriers = (*self.barriers, barrier)
        self._push_io(bound, start, tuple(self._sent), (barrier,))

    def _push_send(self, bound: BoundNode, start: Callable[[OnComplete], None], places: tuple[int, ...]) -> None:
        self._push_sent(bound, start, self.variables_of(places))

    def _push_sent(self, bound: BoundNode, start: Callable[[OnComplete], None], reads: tuple[Variable, ...]) -> None:
        sent = self._engine.variable(f"sent {bound.key}")
        self._sent.append(sent)
        self._push_io(bound, start, reads, (sent,))

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
    FETCH_ROWS: _Run.fetch_rows,
    SEND_ROWS: _Run.send_rows,
    SEND_BARRIER: _Run.barrier,
}


def _completing(on_complete: OnComplete, keep: Callable[[Any], None] | None = None) -> Callable[[Future[Any]], None]:
    """A future's callback that hands its value to `keep` and its end to `on_complete`."""

    def done(future: Future[Any]) -> None:
        error = CancelledError("the store gave it up") if future.cancelled() else future.exception()
        if error is None and keep is not None:
            try:
                keep(future.result())
            except Exception as raised:  # noqa: BLE001  # a value of another type, a device without memory
                error = raised
        on_complete(error)

    return done
