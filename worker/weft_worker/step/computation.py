"""Carries out one node of a run: its kernel, on the values that are there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft_graph.types import BATCH
from weft_kernels.kernel import KernelContext
from weft_worker.device import Device
from weft_worker.engine.work import Variable
from weft_worker.errors import ValueMismatchError
from weft_worker.plan import BoundNode
from weft_worker.step.lanes import COMPUTE
from weft_worker.step.run import StepRun
from weft_worker.table import ValueTable, described


@dataclass(frozen=True, slots=True)
class Computation:
    """A node's kernel and where its values are."""

    bound: BoundNode
    table: ValueTable
    context: KernelContext
    device: Device

    def run(self) -> None:
        """Raises what the kernel raises, and ValueMismatchError where it gives something else than the node names."""
        bound = self.bound
        assert bound.kernel is not None
        inputs = self.table.take(bound.inputs)
        xp = self.device.xp
        with self.device.use():
            wanted = self.table.wanted(xp, bound.outputs)
            outputs = bound.kernel(replace(self.context, placed=wanted), inputs, bound.attributes)
            if len(outputs) < len(bound.outputs):
                raise ValueMismatchError(f"the kernel gave {len(outputs)} outputs, the node names {len(bound.outputs)}")
            for place, array, out in zip(bound.outputs, outputs, wanted, strict=False):
                if place is not None:
                    self.table.settle(xp, place, array, out, inputs)
        self.table.release(bound.inputs)

    def describe(self) -> str:
        """What the kernel had before it, for messages."""
        return described(self.table.take(self.bound.inputs))


def compute(run: StepRun, bound: BoundNode) -> None:
    """Pushes a node that has a kernel."""
    device = run.hands.device
    context = KernelContext(
        bound.node.name,
        xp=device.xp,
        seed=run.context.seed,
        step=run.context.step,
        first_sample=run.context.first_sample,
        samples=run.plan.dims.get(BATCH),
        asked=bound.node.outputs,
        checkpoint=run.hands.checkpoint,
    )
    computation = Computation(bound, run.table, context, device)
    taken = _taken(run, bound)
    run.hands.engine.push(
        computation.run,
        (*(read for read in run.variables_of(bound.inputs) if read not in taken), *run.turn),
        (*run.define(bound.outputs), *taken),
        lane=COMPUTE,
        name=run.name_of(bound),
        describe=computation.describe,
    )


def _taken(run: StepRun, bound: BoundNode) -> tuple[Variable, ...]:
    """The variables of the values whose memory the node's outputs take: work that writes them comes after all that
    reads them. What the IO lane reads lies elsewhere, so that nothing computed waits for the network here."""
    after = run.plan.placement.after
    places = (earlier for place in bound.outputs if place is not None for earlier in after.get(place, ()))
    return run.variables_of(places) if run.turn else ()
