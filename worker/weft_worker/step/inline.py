"""Runs of plans as one piece of work each: the thread that computes also communicates, between two kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from weft.api.trace import SpanKind
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kernels.kernel import Array
from weft_kvstore.futures import on_end
from weft_kvstore.store import StepOutcome
from weft_worker.device import CPU
from weft_worker.engine.errors import PartError
from weft_worker.engine.work import Variable
from weft_worker.own_values import OwnStore
from weft_worker.plan import BoundNode, Plan, Segment
from weft_worker.sharded_store import ShardedStore
from weft_worker.step.computation import begin, run_piece
from weft_worker.step.run import COMPUTE, InlineStore, StepRun
from weft_worker.upload import Upload


def push_inline(run: StepRun, store: InlineStore) -> None:
    """Pushes a run as one piece of work. It is done once its values are updated, or its gradients are handed over."""
    engine, label = run.runtime.engine, run.context.label
    made = run.define(run.plan.outputs.values(), label)
    ended = engine.variable(f"end of {label}")
    run.barriers.append(ended)
    reads = run.variables_of(run.plan.inputs.values())
    writes = (made, ended, run.order, store.variable)
    engine.push(lambda: _carry_out(run, store), reads, writes, lane=COMPUTE, name=label)


def _carry_out(run: StepRun, store: InlineStore) -> None:
    """Raises PartError, which names the node."""
    pieces = [piece for work in run.plan.work if isinstance(work, Segment) for piece in work.pieces]
    last = pieces[-1] if pieces else None
    is_on_host = run.runtime.device.name == CPU
    with run.runtime.device.use():
        begin(run)
        for work in run.plan.work:
            if not isinstance(work, Segment):
                _communicate(run, store, work, is_last=False)
                continue
            for piece in work.pieces:
                run_piece(run, piece)
                if not is_on_host:
                    run.bring(piece, sends=False)
                if piece.leaving:
                    _communicate(run, store, piece.leaving, is_last=piece is last)


def _communicate(run: StepRun, store: InlineStore, bounds: Sequence[BoundNode], *, is_last: bool) -> None:
    try:
        store.communicate(run, bounds, is_last=is_last)
    except PartError:
        raise
    except Exception as error:  # of the store, the rule or the device: the error names the nodes
        raise PartError(run.name_of(*bounds), None, error) from error


# --- Values that this worker alone has and updates --------------------------------------------------------------------


@dataclass(slots=True)
class OwnValues:
    """The values of a job without shards: they are read where they lie, and updated once all that reads them is
    computed. What one run sends (gradients, and ids and rows of tables, by key) is kept until then."""

    store: OwnStore
    variable: Variable
    _gradients: dict[str, Array] = field(default_factory=dict)
    _rows: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    _memory: dict[str, Array] = field(default_factory=dict)
    """By key: see `gradients`."""
    _room: dict[tuple[str, int], Array] = field(default_factory=dict)
    """By table and number of ids, where rows lie on the host: the next run begins once this one has ended."""

    def gradients(self, plan: Plan, xp: Any) -> dict[int, Array]:
        """See `InlineStore`: they are used up within the step, so the next one, of any plan, writes there again."""
        found: dict[int, Array] = {}
        for key, place in plan.sent.items():
            layout = plan.placement.values.get(place)
            if place in plan.outputs.values() or layout is None or layout.offset is not None:
                continue
            array = self.store.gradient(key)
            if array is None or not layout.matches(array):
                array = self._memory.get(key)
                if array is None or array.shape != plan.types[place].shape or not layout.matches(array):
                    array = self._memory[key] = layout.array(xp, None)
            found[place] = array
        return found

    def communicate(self, run: StepRun, bounds: Sequence[BoundNode], *, is_last: bool) -> None:
        """See `InlineStore`."""
        for bound in bounds:
            try:
                _OWN[bound.node.op_type](self, run, bound)
            except Exception as error:
                name = run.name_of(bound) if bound.key else f"update of {run.context.label}"
                raise PartError(name, None, error) from error

    def fetch(self, run: StepRun, bound: BoundNode) -> None:
        """Puts the value itself into the run's table."""
        (place,) = bound.outputs
        assert place is not None
        run.table.put(place, self.store.value(bound.key))

    def fetch_rows(self, run: StepRun, bound: BoundNode) -> None:
        """Puts the rows of the ids."""
        (ids,) = _brought(run, bound)
        on_host = run.runtime.device.name == CPU
        rows = self.store.rows(bound.key, ids, self._room.get((bound.key, len(ids))) if on_host else None)
        if on_host:
            self._room[bound.key, len(ids)] = rows
        _put(run, bound, run.runtime.device.upload(rows))

    def send(self, run: StepRun, bound: BoundNode) -> None:
        """Keeps the gradient, or adds it to those of the step's other parts."""
        (place,) = bound.inputs
        assert place is not None
        gradient = run.table.arrays[place]
        assert gradient is not None
        if run.part is not None:
            run.part.accumulation.add(bound.key, gradient, run.runtime.device.xp)
        else:
            # It may lie in a value that is written before it is read.
            self._gradients[bound.key] = gradient.copy() if place in run.plan.aliased else gradient
        run.table.release(bound.inputs)

    def send_rows(self, run: StepRun, bound: BoundNode) -> None:
        """Keeps ids and rows, or adds them to those of the step's other parts."""
        ids, rows = _brought(run, bound)
        if run.part is not None:
            run.part.accumulation.add_rows(bound.key, ids, rows)
        else:
            self._rows[bound.key] = ids, rows

    def update(self, run: StepRun, _barrier: BoundNode) -> None:
        """Updates the values, after the step's last part."""
        if run.part is not None:
            if not run.part.is_last:
                return
            self._gradients, self._rows = run.part.accumulation.take_all()
        gradients, rows, self._gradients, self._rows = self._gradients, self._rows, {}, {}
        with run.context.span(SpanKind.COMPUTE, "optimizer"):
            self.store.update(run.context.step, gradients, rows)


_OWN: Mapping[str, Callable[[OwnValues, StepRun, BoundNode], None]] = {
    FETCH: OwnValues.fetch,
    FETCH_ROWS: OwnValues.fetch_rows,
    SEND: OwnValues.send,
    SEND_ROWS: OwnValues.send_rows,
    SEND_BARRIER: OwnValues.update,
}


def _put(run: StepRun, bound: BoundNode, array: Array | Upload) -> None:
    (place,) = bound.outputs
    assert place is not None
    run.table.put(place, array)


def _brought(run: StepRun, bound: BoundNode) -> list[Array]:
    """What the node reads, on the host."""
    places = [place for place in bound.inputs if place is not None]
    if run.runtime.device.name == CPU:  # Without a future, which takes longer than the rows of a small batch.
        brought = [np.asarray(run.table.get(place), order="C") for place in places]
    else:
        brought = run.on_host(places).result()
    run.table.release(bound.inputs)
    return brought


# --- Values on shards -------------------------------------------------------------------------------------------------


_NOT_ASKED: Final = (-1,)
"""In the place of what is on its way: a version that there is not."""


@dataclass(slots=True, eq=False)
class SharedValues:
    """The values on a job's shards, where one call pushes a step's gradients and pulls the next step's values: the next
    run waits for it. Values arrive in arrays that kernels read, and gradients are written into arrays that the store
    sends.

    `_ahead` has for each key the version that is on its way, the call that brings it, and its number there. A key's
    gradient array is the store's until that call has ended. `_arrays` has the store's arrays of a key, which are always
    the same: of its gradient, and of its value.
    """

    store: ShardedStore
    variable: Variable
    _ahead: dict[str, tuple[int, Future[list[Array]], int]] = field(default_factory=dict)
    _pushed: list[Future[None]] = field(default_factory=list)
    _arrays: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def gradients(self, plan: Plan, xp: Any) -> dict[int, Array]:
        """See `InlineStore`: those of keys that are fetched before. The push of the step before has ended then."""
        fetched, found = set[str](), dict[int, Array]()
        keys = {place: key for key, place in plan.sent.items() if place not in plan.outputs.values()}
        for bound in plan.nodes:
            if bound.node.op_type == FETCH:
                fetched.add(bound.key)
            for place in bound.outputs:
                if place is None or keys.get(place) not in fetched or place in plan.placement.views:
                    continue
                layout = plan.placement.values.get(place)
                if layout is not None and layout.axes is None:
                    found[place] = self._arrays_of(keys[place])[0]
        return found

    def communicate(self, run: StepRun, bounds: Sequence[BoundNode], *, is_last: bool) -> None:
        """See `InlineStore`."""
        op_type = bounds[0].node.op_type
        if op_type == FETCH:
            self._fetch(run, bounds)
        elif op_type == SEND:
            self._send(run, bounds, is_last=is_last)
        elif not run.context.goes_on:
            run.ending.take(self.end(run.context.step))

    def _fetch(self, run: StepRun, bounds: Sequence[BoundNode]) -> None:
        keys = [bound.key for bound in bounds]
        with run.context.span(SpanKind.FETCH, FETCH, keys):
            values = self.values(keys, run.context.step)
        for bound, value in zip(bounds, values, strict=True):
            _put(run, bound, value)

    def _send(self, run: StepRun, bounds: Sequence[BoundNode], *, is_last: bool) -> None:
        keys = [bound.key for bound in bounds]
        gradients = [run.table.get(place) for bound in bounds for place in bound.inputs if place is not None]
        if is_last:
            run.table.keep_copies(run.plan.outputs.values())
        context, trace = run.context, run.context.trace
        ended = None
        if trace is not None:  # What is sent is under way until the values that it makes are there.
            ended = trace.until(SpanKind.SEND, f"{SEND} {', '.join(keys)}", context.step + 1, trace.now())
        # Later kernels may still read the values, so only the last send lets the pull overwrite them in place.
        sent = self.send(keys, context.step, gradients, goes_on=context.goes_on, in_place=is_last)
        if ended is not None:
            on_end(sent, ended)
        for bound in bounds:
            run.table.release(bound.inputs)

    def values(self, keys: Sequence[str], version: int) -> list[Array]:
        """The keys' values at that version: waits for them. They are the store's arrays, and hold until the keys are
        sent."""
        missing = [key for key in keys if self._ahead.get(key, _NOT_ASKED)[0] != version]
        if missing:
            for key in missing:
                self._await(key)
            out = [self._arrays_of(key)[1] for key in missing]
            self._expect(missing, version, self.store.pull(missing, version, out=out))
        found, call, values = list[Array](), None, list[Array]()
        for key in keys:
            _, future, number = self._ahead.pop(key)
            if future is not call:
                call, values = future, future.result()
            found.append(values[number])
        return found

    def send(
        self, keys: Sequence[str], step: int, gradients: Sequence[Array], *, goes_on: bool, in_place: bool
    ) -> Future[Any]:
        """Pushes gradients; where the job `goes_on`, also pulls what they make. `in_place`: the values that the keys
        have are read no more. Ends once they are there, or the shards have the gradients."""
        arrays, out = list[Array](), list[Array]()
        for key, gradient in zip(keys, gradients, strict=True):
            if key in self._ahead:
                self._await(key)
            array, value = self._arrays_of(key)
            if gradient is not array:
                np.copyto(array, gradient, casting="no")
            arrays.append(array)
            out.append(value)
        if not goes_on:
            pushed = self.store.push(keys, step, arrays)
            self._pushed.append(pushed)
            return pushed
        future = self.store.pushpull(keys, step, arrays, out=out if in_place else None)
        self._expect(keys, step + 1, future)
        return future

    def end(self, step: int) -> StepOutcome | None:
        """Waits until every shard has all that was sent of the last step."""
        for pushed in self._pushed:
            pushed.result()
        return self.store.barrier(step, []).result()

    def _arrays_of(self, key: str) -> tuple[Array, Array]:
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = self.store.buffers(key)
        return found

    def _expect(self, keys: Sequence[str], version: int, future: Future[Any]) -> None:
        self._ahead.update((key, (version, future, number)) for number, key in enumerate(keys))

    def _await(self, key: str) -> None:
        """Waits for what is on its way of a key, which nobody reads."""
        coming = self._ahead.pop(key, None)
        if coming is not None:
            coming[1].result()
