"""Carries out one node of a plan: its kernel, on the values that are there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft_kernels.kernel import KernelContext
from weft_worker.device import Device
from weft_worker.errors import ValueMismatchError
from weft_worker.plan import BoundNode
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
