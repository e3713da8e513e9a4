"""Pushes a run's communication with the store: Fetch, Send, FetchRows, SendRows, SendBarrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any

import numpy as np

from weft.api.trace import SpanKind
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kernels.kernel import Array
from weft_kvstore.futures import after, error_of, joined, nothing, then
from weft_worker.engine.errors import PartError
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.pace import waiting_ids
from weft_worker.plan import BoundNode
from weft_worker.step.accumulation import Accumulation, StepPart
from weft_worker.step.run import COMPUTE, IO, StepRun

Start = Callable[[OnComplete], None]
"""Work of the IO lane, which begins something and calls back at its end."""


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
    device, kept = run.runtime.device, run.runtime.on_device
    shared = run.part.accumulation if run.part is not None else None
    if shared is not None and bounds[0].key in shared.fetched:
        _fetched_before(run, bounds, shared)
        return

    def pull(bound: BoundNode) -> Future[Array]:
        if kept is not None and kept.has(bound.key):
            return kept.pull_on_device(bound.key, run.context.step)
        return run.reads.pull(bound.key, run.context.step)

    def keep(arrays: list[Array]) -> None:
        for bound, place, array in zip(bounds, places, arrays, strict=True):
            value = array if kept is not None and kept.has(bound.key) else device.upload(array)
            if shared is not None:
                shared.held[bound.key] = value
            assert place is not None
            run.table.put(place, value)

    many = run.runtime.many if kept is None and run.reads is run.runtime.store and len(bounds) > 1 else None

    def start(on_complete: OnComplete) -> None:
        if many is not None:
            came = many.pull([bound.key for bound in bounds], run.context.step, settled=run.context.settled)
        else:
            came = joined([_named(run, bound, pull(bound)) for bound in bounds], list)
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
    run.runtime.engine.push(put, reads, (variable,), lane=COMPUTE, name=run.name_of(*bounds))


def _fetch_rows(run: StepRun, bound: BoundNode) -> None:
    (ids,), (rows,) = bound.inputs, bound.outputs
    assert ids is not None
    assert rows is not None

    device, context = run.runtime.device, run.context

    def pull(host: list[Array]) -> Future[Array]:
        return run.reads.pull(bound.key, context.step, waiting_ids(host[0]), settled=context.settled)

    def keep(array: Array) -> None:
        run.table.put(rows, device.upload(array))

    def start(on_complete: OnComplete) -> None:
        brought = run.on_host([ids])
        run.table.release([ids])
        then(brought, pull).add_done_callback(completing(on_complete, keep))

    reads = run.variables_of([ids])
    _push_io(run, [bound], start, reads, run.define(bound.outputs, bound.key))


def _send(run: StepRun, bounds: Sequence[BoundNode]) -> None:
    places = [place for bound in bounds for place in bound.inputs if place is not None]
    if run.part is not None:
        for bound, place in zip(bounds, places, strict=True):
            _push_last(run, bound, _push_sum(run, bound, place, run.part))
        return

    many, store, step = run.runtime.many if len(bounds) > 1 else None, run.runtime.store, run.context.step

    def push(host: list[Array]) -> Future[Any]:
        if many is not None:
            return many.push([bound.key for bound in bounds], step, host)
        pushed = zip(bounds, host, strict=True)
        return joined([_named(run, bound, store.push(bound.key, step, array)) for bound, array in pushed], nothing)

    def start(on_complete: OnComplete) -> None:
        brought = run.on_host(places)
        run.table.release(places)
        then(brought, push).add_done_callback(completing(on_complete))

    _push_send(run, bounds, start, run.variables_of(places))


def _send_rows(run: StepRun, bound: BoundNode) -> None:
    ids, rows = bound.inputs
    assert ids is not None
    assert rows is not None
    if run.part is not None:
        _push_last(run, bound, _push_row_sum(run, bound, ids, rows, run.part))
        return

    def start(on_complete: OnComplete) -> None:
        brought = run.on_host([rows, ids])
        run.table.release([ids, rows])
        pushed = then(brought, lambda host: run.runtime.store.push(bound.key, run.context.step, *host))
        pushed.add_done_callback(completing(on_complete))

    _push_send(run, [bound], start, run.variables_of([ids, rows]))


def _barrier(run: StepRun, bound: BoundNode) -> None:
    if run.part is not None and not run.part.is_last:
        return

    def start(on_complete: OnComplete) -> None:
        done = completing(on_complete, run.ending.take)
        run.runtime.store.barrier(run.context.step, run.runtime.nothing).add_done_callback(done)

    barrier = run.runtime.engine.variable(f"barrier of {run.context.label}")
    run.barriers.append(barrier)
    _push_io(run, [bound], start, tuple(run.sent), barrier)


def _push_last(run: StepRun, bound: BoundNode, send: Start) -> None:
    """The step's last part sends what all parts add up to."""
    if run.part is not None and run.part.is_last:
        _push_send(run, [bound], send, (run.part.accumulation.summed[bound.key],))


def _push_send(run: StepRun, bounds: Sequence[BoundNode], start: Start, reads: tuple[Variable, ...]) -> None:
    sent = run.runtime.engine.variable(f"sent {bounds[0].key}")
    run.sent.append(sent)
    _push_io(run, bounds, start, reads, sent)


def _push_io(
    run: StepRun, bounds: Sequence[BoundNode], start: Start, reads: tuple[Variable, ...], writes: Variable
) -> None:
    name = run.name_of(*bounds)
    priority = min(bound.priority for bound in bounds)
    trace = run.context.trace
    if trace is not None:
        op_type = bounds[0].node.op_type
        kind = SpanKind.FETCH if op_type in {FETCH, FETCH_ROWS} else SpanKind.SEND
        named = f"{op_type} {', '.join(bound.key for bound in bounds)}" if bounds[0].key else op_type
        start = trace.async_(kind, named, run.context.step + 1, start)
    run.runtime.engine.push_async(start, reads, (writes,), lane=IO, name=name, priority=priority)


_ALONE: Mapping[str, Callable[[StepRun, BoundNode], None]] = {
    FETCH_ROWS: _fetch_rows,
    SEND_ROWS: _send_rows,
    SEND_BARRIER: _barrier,
}


# --- What the parts of a step would send is added up, each key by itself ----------------------------------------------


def _push_sum(run: StepRun, bound: BoundNode, place: int, part: StepPart) -> Start:
    """Adds the gradient to those of the parts before. Returns the work that sends the sum, for the last part."""
    shared, key, runtime = part.accumulation, bound.key, run.runtime
    brought: list[Future[list[Array]]] = []

    def add() -> None:
        with runtime.device.use():
            shared.add(key, run.table.get(place), runtime.device.xp)
            if part.is_last:
                brought.append(runtime.device.bring([shared.take(key)]))
        run.table.release([place])

    def send(on_complete: OnComplete) -> None:
        pushed = then(brought.pop(), lambda host: runtime.store.push(key, run.context.step, host[0]))
        pushed.add_done_callback(completing(on_complete))

    _push_addition(run, key, add, (place,), part)
    return send


def _push_row_sum(run: StepRun, bound: BoundNode, ids: int, rows: int, part: StepPart) -> Start:
    """Keeps the rows with those of the parts before. Returns the work that sends them all, for the last part; the store
    sums those of one id."""
    shared, key, runtime = part.accumulation, bound.key, run.runtime
    brought: list[Future[list[Array]]] = []

    def add() -> None:
        with runtime.device.use():
            shared.add_rows(key, run.table.get(ids), run.table.get(rows))
            if part.is_last:
                all_ids, all_rows = shared.take_rows(key)
                brought.append(runtime.device.bring([*all_ids, *all_rows]))
        run.table.release([ids, rows])

    def push(host: list[Array]) -> Future[None]:
        half = len(host) // 2
        return runtime.store.push(key, run.context.step, np.concatenate(host[half:]), np.concatenate(host[:half]))

    def send(on_complete: OnComplete) -> None:
        then(brought.pop(), push).add_done_callback(completing(on_complete))

    _push_addition(run, key, add, (ids, rows), part)
    return send


def _push_addition(run: StepRun, key: str, add: Callable[[], None], places: tuple[int, ...], part: StepPart) -> None:
    summed, engine = part.accumulation.summed, run.runtime.engine
    if key not in summed:
        summed[key] = engine.variable(f"sum of {key}")
    name = f"sum of {key!r} of {run.context.label}"
    engine.push(add, run.variables_of(places), (summed[key],), lane=COMPUTE, name=name)


# --- The ends of futures as the end of the engine's work --------------------------------------------------------------


def _named(run: StepRun, bound: BoundNode, future: Future[Any]) -> Future[Any]:
    """Ends as the future does; an error is that of the node."""
    return after(future, lambda error: error and PartError(run.name_of(bound), None, error))


def completing(on_complete: OnComplete, keep: Callable[[Any], None] | None = None) -> Callable[[Future[Any]], None]:
    """A future's callback that hands its value to `keep` and its end to `on_complete`."""

    def done(future: Future[Any]) -> None:
        error = error_of(future)
        if error is None and keep is not None:
            try:
                keep(future.result())
            except Exception as raised:  # noqa: BLE001  # a value of another type, a device without memory
                error = raised
        on_complete(error)

    return done
