"""Pushes a run's communication with the store: Fetch, Send, FetchRows, SendRows, SendBarrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any

from weft.api.trace import SpanKind
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kernels.kernel import Array
from weft_worker.device import after
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.pace import waiting_ids
from weft_worker.plan import BoundNode
from weft_worker.step.accumulation import Accumulation
from weft_worker.step.completing import completing, together
from weft_worker.step.lanes import COMPUTE, IO
from weft_worker.step.run import StepRun
from weft_worker.step.sums import Start, push_row_sum, push_sum


def push_communication(run: StepRun, bounds: Sequence[BoundNode]) -> None:
    """Pushes nodes that have no kernel, and that begin together. Those of one kind are one piece of work."""
    for op_type, group in groupby(bounds, lambda bound: bound.node.op_type):
        alike = tuple(group)
        if op_type == FETCH:
            _fetch(run, alike)
        elif op_type == SEND:
            _send(run, alike)
        else:
            for bound in alike:
                _ALONE[op_type](run, bound)


def _fetch(run: StepRun, bounds: Sequence[BoundNode]) -> None:
    places = [bound.outputs[0] for bound in bounds]
    device, there = run.hands.device, run.hands.there
    shared = run.part.accumulation if run.part is not None else None
    if shared is not None and bounds[0].key in shared.fetched:
        _fetched_before(run, bounds, shared)
        return

    def called(number: int) -> str:
        return run.name_of(bounds[number])

    def pulled(bound: BoundNode) -> Future[Array]:
        if there is not None and bound.key in there.keys_there:
            return there.pull_there(bound.key, run.context.step)
        return run.reads.pull(bound.key, run.context.step)

    def keep(arrays: list[Array]) -> None:
        for bound, place, array in zip(bounds, places, arrays, strict=True):
            is_there = there is not None and bound.key in there.keys_there
            value = array if is_there else device.to_device(array)
            if shared is not None:
                shared.held[bound.key] = value
            assert place is not None
            run.table.put(place, value)

    many = run.hands.many if there is None and run.reads is run.hands.store and len(bounds) > 1 else None

    def start(on_complete: OnComplete) -> None:
        if many is not None:
            came = many.pull([bound.key for bound in bounds], run.context.step, settled=run.context.settled)
        else:
            came = together([pulled(bound) for bound in bounds], called)
        came.add_done_callback(completing(on_complete, keep))

    variable = run.define(places, bounds[0].key)
    _push_io(run, bounds, start, (), variable)
    if shared is not None:
        shared.fetched.update((bound.key, variable) for bound in bounds)


def _fetched_before(run: StepRun, bounds: Sequence[BoundNode], shared: Accumulation) -> None:
    """The step's first part fetches the values; the others have them from there."""
    places = [bound.outputs[0] for bound in bounds]

    def put() -> None:
        for bound, place in zip(bounds, places, strict=True):
            assert place is not None
            run.table.put(place, shared.held[bound.key])

    reads, variable = (shared.fetched[bounds[0].key],), run.define(places, bounds[0].key)
    run.hands.engine.push(put, reads, (variable,), lane=COMPUTE, name=run.name_of_all(bounds))


def _fetch_rows(run: StepRun, bound: BoundNode) -> None:
    (ids,), (rows,) = bound.inputs, bound.outputs
    assert ids is not None
    assert rows is not None

    device, context = run.hands.device, run.context

    def pull(host: list[Array]) -> Future[Array]:
        return run.reads.pull_rows(bound.key, waiting_ids(host[0]), context.step, settled=context.settled)

    def keep(array: Array) -> None:
        run.table.put(rows, device.to_device(array))

    def start(on_complete: OnComplete) -> None:
        brought = device.bring([run.table.get(ids)])
        run.table.release([ids])
        after(brought, pull).add_done_callback(completing(on_complete, keep))

    reads = run.variables_of([ids])
    _push_io(run, [bound], start, reads, run.define(bound.outputs, bound.key))


def _send(run: StepRun, bounds: Sequence[BoundNode]) -> None:
    places = [place for bound in bounds for place in bound.inputs if place is not None]
    if run.part is not None:
        for bound, place in zip(bounds, places, strict=True):
            _push_last(run, bound, push_sum(run, bound, place, run.part))
        return

    many = run.hands.many if len(bounds) > 1 else None

    def called(number: int) -> str:
        return run.name_of(bounds[number])

    def push(host: list[Array]) -> Future[Any]:
        if many is not None:
            return many.push([bound.key for bound in bounds], run.context.step, host)
        pushed = zip(bounds, host, strict=True)
        return together([run.hands.store.push(bound.key, run.context.step, array) for bound, array in pushed], called)

    def start(on_complete: OnComplete) -> None:
        brought = run.hands.device.bring([run.table.get(place) for place in places])
        run.table.release(places)
        after(brought, push).add_done_callback(completing(on_complete))

    _push_send(run, bounds, start, run.variables_of(places))


def _send_rows(run: StepRun, bound: BoundNode) -> None:
    ids, rows = bound.inputs
    assert ids is not None
    assert rows is not None
    if run.part is not None:
        _push_last(run, bound, push_row_sum(run, bound, ids, rows, run.part))
        return

    def start(on_complete: OnComplete) -> None:
        brought = run.hands.device.bring([run.table.get(ids), run.table.get(rows)])
        run.table.release([ids, rows])
        pushed = after(brought, lambda host: run.hands.store.push_rows(bound.key, run.context.step, *host))
        pushed.add_done_callback(completing(on_complete))

    _push_send(run, [bound], start, run.variables_of([ids, rows]))


def _barrier(run: StepRun, bound: BoundNode) -> None:
    if run.part is not None and not run.part.is_last:
        return

    def start(on_complete: OnComplete) -> None:
        done = completing(on_complete, run.ending.take)
        run.hands.store.barrier(run.context.step, run.nothing).add_done_callback(done)

    barrier = run.hands.engine.variable(f"barrier of {run.context.label}")
    run.barriers.append(barrier)
    _push_io(run, [bound], start, tuple(run.sent), barrier)


def _push_last(run: StepRun, bound: BoundNode, send: Start) -> None:
    """The step's last part sends what all parts add up to."""
    if run.part is not None and run.part.is_last:
        _push_send(run, [bound], send, (run.part.accumulation.summed[bound.key],))


def _push_send(run: StepRun, bounds: Sequence[BoundNode], start: Start, reads: tuple[Variable, ...]) -> None:
    sent = run.hands.engine.variable(f"sent {bounds[0].key}")
    run.sent.append(sent)
    _push_io(run, bounds, start, reads, sent)


def _push_io(
    run: StepRun, bounds: Sequence[BoundNode], start: Start, reads: tuple[Variable, ...], writes: Variable
) -> None:
    name = run.name_of(bounds[0]) if len(bounds) == 1 else run.name_of_all(bounds)
    priority = min(bound.priority for bound in bounds)
    trace = run.context.trace
    if trace is not None:
        op_type = bounds[0].node.op_type
        kind = SpanKind.FETCH if op_type in {FETCH, FETCH_ROWS} else SpanKind.SEND
        told = f"{op_type} {', '.join(bound.key for bound in bounds)}" if bounds[0].key else op_type
        start = trace.async_(kind, told, run.context.step + 1, start)
    run.hands.engine.push_async(start, reads, (writes,), lane=IO, name=name, priority=priority)


_ALONE: Mapping[str, Callable[[StepRun, BoundNode], None]] = {
    FETCH_ROWS: _fetch_rows,
    SEND_ROWS: _send_rows,
    SEND_BARRIER: _barrier,
}
