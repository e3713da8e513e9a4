"""Pushes a run's communication with the store: Fetch, Send, FetchRows, SendRows, SendBarrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kernels.kernel import Array
from weft_worker.device import after
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.pace import waiting_ids
from weft_worker.plan import BoundNode
from weft_worker.step.accumulation import Accumulation
from weft_worker.step.completing import completing
from weft_worker.step.lanes import COMPUTE, IO
from weft_worker.step.run import StepRun
from weft_worker.step.sums import Start, push_row_sum, push_sum


def push_communication(run: StepRun, bound: BoundNode) -> None:
    """Pushes a node that has no kernel."""
    _COMMUNICATION[bound.node.op_type](run, bound)


def _fetch(run: StepRun, bound: BoundNode) -> None:
    (place,) = bound.outputs
    assert place is not None

    device, there = run.hands.device, run.hands.there
    there = there if there is not None and bound.key in there.keys_there else None
    shared = run.part.accumulation if run.part is not None else None
    if shared is not None and bound.key in shared.fetched:
        _fetched_before(run, bound, place, shared)
        return

    def keep(array: Array) -> None:
        value = array if there is not None else device.to_device(array)
        if shared is not None:
            shared.held[bound.key] = value
        run.table.put(place, value)

    def start(on_complete: OnComplete) -> None:
        pull = run.reads.pull if there is None else there.pull_there
        pull(bound.key, run.context.step).add_done_callback(completing(on_complete, keep))

    writes = run.define(bound.outputs)
    _push_io(run, bound, start, (), writes)
    if shared is not None:
        (shared.fetched[bound.key],) = writes


def _fetched_before(run: StepRun, bound: BoundNode, place: int, shared: Accumulation) -> None:
    """The step's first part fetches the value; the others have it from there."""

    def put() -> None:
        run.table.put(place, shared.held[bound.key])

    reads, writes = (shared.fetched[bound.key],), run.define(bound.outputs)
    run.hands.engine.push(put, reads, writes, lane=COMPUTE, name=run.name_of(bound))


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

    _push_io(run, bound, start, run.variables_of([ids]), run.define(bound.outputs))


def _send(run: StepRun, bound: BoundNode) -> None:
    (place,) = bound.inputs
    assert place is not None
    if run.part is not None:
        _push_last(run, bound, push_sum(run, bound, place, run.part))
        return

    def start(on_complete: OnComplete) -> None:
        brought = run.hands.device.bring([run.table.get(place)])
        run.table.release([place])
        pushed = after(brought, lambda host: run.hands.store.push(bound.key, run.context.step, host[0]))
        pushed.add_done_callback(completing(on_complete))

    _push_send(run, bound, start, run.variables_of([place]))


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

    _push_send(run, bound, start, run.variables_of([ids, rows]))


def _barrier(run: StepRun, bound: BoundNode) -> None:
    if run.part is not None and not run.part.is_last:
        return

    def start(on_complete: OnComplete) -> None:
        done = completing(on_complete, run.ending.take)
        run.hands.store.barrier(run.context.step, run.nothing).add_done_callback(done)

    barrier = run.hands.engine.variable(f"barrier of {run.context.label}")
    run.barriers.append(barrier)
    _push_io(run, bound, start, tuple(run.sent), (barrier,))


def _push_last(run: StepRun, bound: BoundNode, send: Start) -> None:
    """The step's last part sends what all parts add up to."""
    if run.part is not None and run.part.is_last:
        _push_send(run, bound, send, (run.part.accumulation.summed[bound.key],))


def _push_send(run: StepRun, bound: BoundNode, start: Start, reads: tuple[Variable, ...]) -> None:
    sent = run.hands.engine.variable(f"sent {bound.key}")
    run.sent.append(sent)
    _push_io(run, bound, start, reads, (sent,))


def _push_io(
    run: StepRun, bound: BoundNode, start: Start, reads: tuple[Variable, ...], writes: tuple[Variable, ...]
) -> None:
    name = run.name_of(bound)
    run.hands.engine.push_async(start, reads, writes, lane=IO, name=name, priority=bound.priority)


_COMMUNICATION: Mapping[str, Callable[[StepRun, BoundNode], None]] = {
    FETCH: _fetch,
    SEND: _send,
    FETCH_ROWS: _fetch_rows,
    SEND_ROWS: _send_rows,
    SEND_BARRIER: _barrier,
}
