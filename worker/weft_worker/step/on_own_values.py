"""Pushes a run of a plan whose values this worker keeps itself: all of it is one piece of work, and nothing travels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.api.trace import SpanKind
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kernels.kernel import Array
from weft_worker.device import CPU
from weft_worker.engine.errors import PartError
from weft_worker.own_values import OwnStore
from weft_worker.plan import BoundNode, Segment
from weft_worker.step.computation import run_nodes
from weft_worker.step.hands import Own
from weft_worker.step.lanes import COMPUTE
from weft_worker.step.run import StepRun


def push_on_own(run: StepRun, own: Own) -> None:
    """Values are read where they lie, and updated once all that reads them is computed."""
    reads = run.variables_of(run.plan.inputs.values())
    made = run.define([place for bound in run.plan.nodes for place in bound.outputs], run.context.label)
    updated = run.hands.engine.variable(f"update of {run.context.label}")
    run.barriers.append(updated)
    writes = (made, updated, run.turn, own.turn)
    run.hands.engine.push(_OwnRun(run, own.store).carry_out, reads, writes, lane=COMPUTE, name=run.context.label)


@dataclass(slots=True)
class _OwnRun:
    """`gradients` and `rows` (ids and rows) are what is sent, by key."""

    run: StepRun
    store: OwnStore
    gradients: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def carry_out(self) -> None:
        """Raises PartError, which names the node."""
        with self.run.hands.device.use():
            for work in self.run.plan.work:
                if isinstance(work, Segment):
                    for piece in work.pieces:
                        run_nodes(self.run, piece.nodes)
                        self._communicate(piece.leaving)
                else:
                    self._communicate(work)

    def _communicate(self, bounds: Sequence[BoundNode]) -> None:
        for bound in bounds:
            try:
                _KINDS[bound.node.op_type](self, bound)
            except Exception as error:  # of the store, the rule or the device: the error names the node
                name = f"update of {self.run.context.label}" if not bound.key else self.run.name_of(bound)
                raise PartError(name, None, error) from error

    def fetch(self, bound: BoundNode) -> None:
        self._put(bound, self.store.value(bound.key))

    def fetch_rows(self, bound: BoundNode) -> None:
        (ids,) = self._brought(bound)
        self._put(bound, self.run.hands.device.to_device(self.store.rows(bound.key, ids)))

    def send(self, bound: BoundNode) -> None:
        (place,), part = bound.inputs, self.run.part
        assert place is not None
        gradient = self.run.table.get(place)
        if part is not None:
            part.accumulation.add(bound.key, gradient, self.run.hands.device.xp)
        else:
            # It may lie in a value that is written before it is read.
            self.gradients[bound.key] = gradient.copy() if place in self.run.plan.lent else gradient
        self.run.table.release(bound.inputs)

    def send_rows(self, bound: BoundNode) -> None:
        ids, rows = self._brought(bound)
        if self.run.part is not None:
            self.run.part.accumulation.add_rows(bound.key, ids, rows)
        else:
            self.rows[bound.key] = ids, rows

    def update(self, bound: BoundNode) -> None:
        part = self.run.part
        if part is not None:
            if not part.is_last:
                return
            self.gradients, self.rows = part.accumulation.take_all()
        trace = self.run.context.trace
        begin_ns = 0 if trace is None else trace.now()
        self.store.update(self.run.context.step, self.gradients, self.rows)
        if trace is not None:
            trace.add(SpanKind.COMPUTE, "optimizer", self.run.context.step + 1, begin_ns)

    def _brought(self, bound: BoundNode) -> list[Array]:
        """What the node reads, on the host."""
        device, table = self.run.hands.device, self.run.table
        found = [table.get(place) for place in bound.inputs if place is not None]
        on_host = device.name == CPU  # Without a future, which takes longer than the rows of a small batch.
        brought = [np.asarray(array, order="C") for array in found] if on_host else device.bring(found).result()
        table.release(bound.inputs)
        return brought

    def _put(self, bound: BoundNode, array: Array) -> None:
        (place,) = bound.outputs
        assert place is not None
        self.run.table.put(place, array)


_KINDS: Mapping[str, Callable[[_OwnRun, BoundNode], None]] = {
    FETCH: _OwnRun.fetch,
    FETCH_ROWS: _OwnRun.fetch_rows,
    SEND: _OwnRun.send,
    SEND_ROWS: _OwnRun.send_rows,
    SEND_BARRIER: _OwnRun.update,
}
