"""Pushes runs of plans to the engine: segments, and the communication around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.weft_domain import FETCH, FETCH_ROWS
from weft_kernels.kernel import Array
from weft_worker.arena import Arenas
from weft_worker.device import CPU
from weft_worker.engine.serial import SerialEngine
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.errors import DeviceError
from weft_worker.graphs import Graphs
from weft_worker.pace import Pace
from weft_worker.plan import BoundNode, Plan, Segment
from weft_worker.run_store import Readable
from weft_worker.step.accumulation import StepPart
from weft_worker.step.communication import completing, push_communication
from weft_worker.step.computation import compute
from weft_worker.step.inline import push_inline
from weft_worker.step.run import COMPUTE, IO, Runtime, StepRun
from weft_worker.step.values import Ending, LateFeed, PushedStep, StepContext
from weft_worker.table import Calls, ValueTable
from weft_worker.upload import Upload

_Memory = tuple[dict[int, Array], Calls, Graphs | None]
"""The arrays of a plan's values that have a place of their own in every run, and what kernels are told: see
`ValueTable`; and the CUDA graphs that stand on them."""


class StepPusher:
    """Turns runs of plans into the work of the runtime's engine. Values lie in an arena, unless `arena` is False: then
    each has its own memory."""

    def __init__(self, runtime: Runtime, *, arena: bool = True) -> None:
        self._runtime = runtime
        self.engine = runtime.engine
        self.arenas = Arenas(runtime.engine, runtime.device) if arena else None
        self._order = runtime.engine.variable("segments")
        self._memory_now: Array | None = None
        self._arrays: dict[int, tuple[Plan, _Memory]] = {}
        """For each plan by its identity, the arrays of its values in that memory."""

    def push(
        self,
        plan: Plan,
        context: StepContext,
        feeds: Mapping[str, Array],
        *,
        fetched: Mapping[str, Array | Upload] | None = None,
        late: LateFeed | None = None,
        part: StepPart | None = None,
        reads: Readable | None = None,
    ) -> PushedStep:
        """Pushes all of a plan's work. With `fetched`, whole keys' values come from there instead of the store; they
        are the device's, or on their way there.

        `feeds` has an array for each of the plan's inputs but `late`. A `part` of a step is sent with the others by the
        last of them. `reads` stands in the place of the store where values are read.
        """
        (arrays, calls, graphs), order = self._memory(plan, context)
        table = ValueTable(plan, arrays, calls, None if graphs is None else graphs.landed)
        reads = reads or self._runtime.store
        run = StepRun(self._runtime, plan, context, table, reads, order, part, graphs)
        _feed(run, feeds, late)
        if self._runtime.inline is not None and fetched is None:
            push_inline(run, self._runtime.inline)
            return _pushed(run)
        for work in plan.work:
            if isinstance(work, Segment):
                compute(run, work)
                for piece in work.pieces:
                    push_communication(run, piece.leaving)
            elif fetched is not None and work[0].node.op_type == FETCH:
                _fill(run, work, fetched)
            else:
                push_communication(run, work)
        return _pushed(run)

    def _memory(self, plan: Plan, context: StepContext) -> tuple[_Memory, Variable]:
        """What the table of a run is given, and the variable that work on its values writes.

        Raises DeviceError, which names the largest of them.
        """
        if self.arenas is None:
            return ({}, {}, None), self._order
        nbytes = plan.placement.layout.arena_bytes
        try:
            memory, order = self.arenas.take(nbytes)
        except MemoryError as error:
            largest = plan.placement.largest(plan.names)
            message = f"{context.label}: its values need {nbytes} bytes at once, which cannot be had ({error})"
            raise DeviceError(f"{message}; the largest are {largest}") from error
        return self._arrays_in(plan, memory), order

    def _arrays_in(self, plan: Plan, memory: Array | None) -> _Memory:
        if memory is not self._memory_now:
            self._memory_now, self._arrays = memory, {}
        known = self._arrays.get(id(plan))
        if known is None:
            device = self._runtime.device
            with device.use():
                arrays = {} if memory is None else plan.placement.arrays(device.xp, memory)
                if self._runtime.inline is not None:
                    arrays |= self._runtime.inline.gradients(plan, device.xp)
                    if isinstance(self.engine, SerialEngine):
                        arrays = self._lasting(plan) | arrays
                capturing = self._runtime.capturing
                graphs = None if capturing is None else Graphs(plan, capturing)
                known = self._arrays[id(plan)] = plan, (arrays, {}, graphs)
        return known[1]

    def _lasting(self, plan: Plan) -> dict[int, Array]:
        """Memory for what has no place in the arena, as outputs: where each run has ended before the next begins, it
        has been read."""
        values = plan.placement.values.items()
        return {place: each.array(self._runtime.device.xp, None) for place, each in values if each.offset is None}

    def push_absence(
        self, step: int, nothing: Sequence[str], pace: Pace, label: str, ending: Ending | None = None
    ) -> Variable:
        """Declares nothing for every key of `nothing`, for a slot that has no samples of the step.

        First it waits for the step's version of the key `pace`, whose value is dropped: a slot that computes nothing
        would otherwise run ahead of the others, further than the store lets it.
        """
        engine, store = self._runtime.engine, self._runtime.store
        reached, barrier = engine.variable(f"{pace.key} of {label}"), engine.variable(f"barrier of {label}")
        fetch = FETCH_ROWS if pace.rows else FETCH

        def wait(on_complete: OnComplete) -> None:
            pace.reached(store, step).add_done_callback(completing(on_complete))

        def declare(on_complete: OnComplete) -> None:
            keep = None if ending is None else ending.take
            store.barrier(step, nothing).add_done_callback(completing(on_complete, keep))

        engine.push_async(wait, [], [reached], lane=IO, name=f"{fetch} {pace.key!r} of {label}")
        engine.push_async(declare, [reached], [barrier], lane=IO, name=f"SendBarrier of {label}")
        return barrier


def _pushed(run: StepRun) -> PushedStep:
    """The run, once all its nodes are pushed. The thread that computes does not wait for its outputs to be copied from
    a device: it begins the next step meanwhile."""
    engine, label, places = run.runtime.engine, run.context.label, list(run.plan.outputs.values())
    made = run.variables_of(places)
    if run.runtime.device.name == CPU:
        return PushedStep(run.plan, run.table, made, tuple(run.barriers), run.ending)
    there = engine.variable(f"outputs of {label}")
    pushed = PushedStep(run.plan, run.table, (there,), tuple(run.barriers), run.ending)

    def start(on_complete: OnComplete) -> None:
        run.on_host(places).add_done_callback(completing(on_complete, pushed.brought.extend))

    engine.push_async(start, made, (there,), lane=IO, name=f"copy of the outputs of {label}")
    return pushed


# --- What a program reads without computing it: inputs, and values that are there already -----------------------------


def _feed(run: StepRun, feeds: Mapping[str, Array], late: LateFeed | None) -> None:
    """Puts the plan's inputs, each of which is of `feeds` or is `late`."""
    for name, place in run.plan.inputs.items():
        if late is not None and name == late.name:
            _feed_late(run, place, late)
        else:
            run.table.put(place, run.runtime.device.upload(feeds[name]))


def _feed_late(run: StepRun, place: int, late: LateFeed) -> None:
    """Puts an input that other work decides. What reads it waits, and nothing else."""

    def put() -> None:
        run.table.put(place, run.runtime.device.upload(late.read()))

    name = f"{late.name} of {run.context.label}"
    run.runtime.engine.push(put, late.after, (run.define([place], late.name),), lane=COMPUTE, name=name)


def _fill(run: StepRun, bounds: Sequence[BoundNode], fetched: Mapping[str, Array | Upload]) -> None:
    """Puts the values of Fetches, which have been fetched before."""
    for bound in bounds:
        (place,) = bound.outputs
        assert place is not None
        run.table.put(place, fetched[bound.key])
