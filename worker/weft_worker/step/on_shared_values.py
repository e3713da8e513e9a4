"""Pushes a run of a plan whose values are on shards as one piece of work: the thread that computes sends and waits.

The gradients of a step leave with the pull of what they make, so one call of the store serves both; the next run waits
for it. Values arrive in arrays that kernels read, and gradients are written into arrays that the store sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.api.trace import SpanKind
from weft_graph.weft_domain import FETCH, SEND
from weft_kvstore.futures import on_end
from weft_worker.engine.errors import PartError
from weft_worker.plan import BoundNode, Segment
from weft_worker.step.computation import run_nodes
from weft_worker.step.hands import Shared
from weft_worker.step.lanes import COMPUTE
from weft_worker.step.run import StepRun


def push_on_shared(run: StepRun, shared: Shared) -> None:
    """Done once the gradients are handed over; that of the last step, once the shards have them."""
    engine, label = run.hands.engine, run.context.label
    made = run.define([place for bound in run.plan.nodes for place in bound.outputs], label)
    sent = engine.variable(f"gradients of {label}")
    run.barriers.append(sent)
    reads = run.variables_of(run.plan.inputs.values())
    writes = (made, sent, run.turn, shared.turn)
    engine.push(_SharedRun(run, shared).carry_out, reads, writes, lane=COMPUTE, name=label)


@dataclass(slots=True)
class _SharedRun:
    run: StepRun
    shared: Shared

    def carry_out(self) -> None:
        """Raises PartError, which names the node."""
        work = self.run.plan.work
        segments = [one for one in work if isinstance(one, Segment)]
        last = segments[-1].pieces[-1].leaving if segments else ()
        for one in work:
            if not isinstance(one, Segment):
                self._communicate(one, last)
                continue
            for piece in one.pieces:
                run_nodes(self.run, piece.nodes)
                if piece.leaving:
                    self._communicate(piece.leaving, last)

    def _communicate(self, bounds: Sequence[BoundNode], last: Sequence[BoundNode]) -> None:
        run, op_type = self.run, bounds[0].node.op_type
        try:
            if op_type == FETCH:
                self._fetch(bounds)
            elif op_type == SEND:
                self._send(bounds, are_last=bounds is last)
            elif not run.context.goes_on:
                run.ending.take(self.shared.end(run.context.step))
        except Exception as error:  # of the store: the error names the nodes
            name = run.name_of_all(bounds) if len(bounds) > 1 else run.name_of(bounds[0])
            raise PartError(name, None, error) from error

    def _fetch(self, bounds: Sequence[BoundNode]) -> None:
        run, keys, trace = self.run, [bound.key for bound in bounds], self.run.context.trace
        begin_ns = 0 if trace is None else trace.now()
        values = self.shared.values(keys, run.context.step)
        if trace is not None:
            trace.add(SpanKind.FETCH, f"{FETCH} {', '.join(keys)}", run.context.step + 1, begin_ns)
        for bound, value in zip(bounds, values, strict=True):
            (place,) = bound.outputs
            assert place is not None
            run.table.put(place, value)
        # The previous push of these keys has ended, so kernels may write into the send buffers.
        sent = run.plan.sent
        run.table.place({sent[key]: self.shared.gradient(key) for key in keys if key in sent})

    def _send(self, bounds: Sequence[BoundNode], *, are_last: bool) -> None:
        run, keys = self.run, [bound.key for bound in bounds]
        gradients = [run.table.get(place) for bound in bounds for place in bound.inputs if place is not None]
        if are_last:
            run.table.keep_copies(run.plan.outputs.values())
        trace = run.context.trace
        begin_ns = 0 if trace is None else trace.now()
        # Later kernels may still read the values, so only the last send lets the pull overwrite them in place.
        sent = self.shared.send(keys, run.context.step, gradients, goes_on=run.context.goes_on, in_place=are_last)
        if trace is not None:  # What was sent is under way until the values that it makes are there.
            told = f"{SEND} {', '.join(keys)}"
            on_end(sent, trace.until(SpanKind.SEND, told, run.context.step + 1, begin_ns))
        for bound in bounds:
            run.table.release(bound.inputs)
