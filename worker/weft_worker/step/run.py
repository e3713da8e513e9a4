"""What carries out a job's runs of plans on this worker, and one such run while it is being pushed to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from weft_kernels.kernel import Array
from weft_kvstore.futures import joined
from weft_worker.device import CapturingDevice, CpuDevice, Device
from weft_worker.engine.engine import Engine
from weft_worker.engine.work import Variable
from weft_worker.graphs import Graphs
from weft_worker.local_update import LocalUpdateStore
from weft_worker.plan import BoundNode, Piece, Plan
from weft_worker.run_store import Readable, RunStore
from weft_worker.sharded_store import ShardedStore
from weft_worker.step.accumulation import StepPart
from weft_worker.step.values import Ending, StepContext
from weft_worker.table import ValueTable

COMPUTE: Final = "compute"
"""The engine's lane of kernels, and of all that reads what they make."""

IO: Final = "io"
"""The engine's lane of what waits for the store, and for copies from the device."""


class InlineStore(Protocol):
    """Communication that the thread which computes carries out itself, between two kernels: a run is then one piece of
    work. Such work writes `variable`."""

    variable: Variable

    def gradients(self, plan: Plan, xp: Any) -> dict[int, Array]:
        """The arrays of `xp` that gradients of the plan are to be written to, by place: sent from there, they are not
        copied."""

    def communicate(self, run: StepRun, bounds: Sequence[BoundNode], *, is_last: bool) -> None:
        """Carries out nodes of one kind; `is_last`: no node of the run that has a kernel follows."""


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """`store` carries out communication, `device` computes; the values of the keys of `on_device` are there already.
    `nothing`: the keys that a step's barrier declares nothing for. With `inline`, runs of training communicate through
    it instead. `capturing` is the device where plans' nodes become CUDA graphs.

    `checkpoint` is called between the iterations of a graph's loops, and raises once the run is over.
    """

    engine: Engine
    store: RunStore
    device: Device = field(default_factory=CpuDevice)
    on_device: LocalUpdateStore | None = None
    inline: InlineStore | None = None
    checkpoint: Callable[[], None] | None = None
    capturing: CapturingDevice | None = None
    nothing: tuple[str, ...] = ()

    @property
    def many(self) -> ShardedStore | None:
        """The store, where it takes many keys in one call."""
        return self.store if isinstance(self.store, ShardedStore) else None


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """A run's values, and the variables that stand for them.

    Values are read from `reads`. Segments write `order`, so that they follow each other. With `part`, the run is one of
    several that make up a step. `sent` and `barriers` grow as nodes are pushed; `brought` has what is on its way to the
    host, by place: the copy, and the value's number in it.
    """

    runtime: Runtime
    plan: Plan
    context: StepContext
    table: ValueTable
    reads: Readable
    order: Variable
    part: StepPart | None = None
    graphs: Graphs | None = None
    ending: Ending = field(default_factory=Ending)
    sent: list[Variable] = field(default_factory=list)
    barriers: list[Variable] = field(default_factory=list)
    brought: dict[int, tuple[Future[list[Array]], int]] = field(default_factory=dict)
    _variables: dict[int, Variable] = field(default_factory=dict)

    def variables_of(self, places: Iterable[int | None]) -> tuple[Variable, ...]:
        """The variables of the values that work makes, each once; what is fed or constant is there already."""
        return tuple(dict.fromkeys(self._variables[place] for place in places if place in self._variables))

    def define(self, places: Iterable[int | None], name: str) -> Variable:
        """A new variable that stands for all these values, for which work is about to be pushed."""
        variable = self.runtime.engine.variable(name)
        self._variables.update((place, variable) for place in places if place is not None)
        return variable

    def signal(self, nodes: Sequence[BoundNode]) -> Variable:
        """A new variable for all that these nodes make."""
        places = [place for bound in nodes for place in bound.outputs]
        return self.define(places, nodes[-1].node.name if nodes else self.context.label)

    def bring(self, piece: Piece, *, sends: bool) -> None:
        """Begins to copy what the host reads of a piece's values, behind its kernels and before later ones. Called by
        the thread that has started them, within the device's `use`."""
        places = (*piece.brings, *piece.sends) if sends else piece.brings
        if places:
            copy = self.runtime.device.bring([self.table.get(place) for place in places])
            self.brought.update((place, (copy, number)) for number, place in enumerate(places))

    def on_host(self, places: Sequence[int]) -> Future[list[Array]]:
        """The values of these places on the host, once they are there."""
        copies, numbers = list[Future[list[Array]]](), list[int]()
        for place in places:
            if place in self.brought:
                copy, number = self.brought[place]
            else:  # No kernel has made it.
                copy, number = self.runtime.device.bring([self.table.get(place)]), 0
            copies.append(copy)
            numbers.append(number)
        return joined(copies, lambda found: [each[number] for each, number in zip(found, numbers, strict=True)])

    def name_of(self, *bounds: BoundNode) -> str:
        """What messages call the work of one node, or of several of one kind."""
        keys = ", ".join(repr(bound.key or bound.node.name) for bound in bounds)
        return f"{bounds[0].node.op_type} {keys} of {self.context.label}"
