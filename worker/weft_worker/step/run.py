"""One run of a plan while it is being pushed to the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weft_kvstore.store import Readable
from weft_worker.engine.work import Variable
from weft_worker.plan import BoundNode, Plan
from weft_worker.step.accumulation import StepPart
from weft_worker.step.hands import Hands
from weft_worker.step.values import Ending, PushedStep, StepContext
from weft_worker.table import ValueTable


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """A run's values, and the variables that stand for them.

    Whole keys and rows are read from `reads`; `nothing` are keys that the barrier declares nothing for. Segments write
    `turn`, so that they follow each other. With `part`, the run is one of several that make up a step.
    `sent` and `barriers` grow as nodes are pushed.
    """

    hands: Hands
    plan: Plan
    context: StepContext
    table: ValueTable
    reads: Readable
    turn: Variable
    nothing: tuple[str, ...] = ()
    part: StepPart | None = None
    ending: Ending = field(default_factory=Ending)
    sent: list[Variable] = field(default_factory=list)
    barriers: list[Variable] = field(default_factory=list)
    _variables: dict[int, Variable] = field(default_factory=dict)

    def variables_of(self, places: Iterable[int | None]) -> tuple[Variable, ...]:
        """The variables of the values that work makes, each once; what is fed or constant is there already."""
        return tuple(dict.fromkeys(self._variables[place] for place in places if place in self._variables))

    def define(self, places: Iterable[int | None], name: str) -> Variable:
        """A new variable that stands for all these values, for which work is about to be pushed."""
        variable = self.hands.engine.variable(name)
        self._variables.update((place, variable) for place in places if place is not None)
        return variable

    def signal(self, nodes: Sequence[BoundNode]) -> Variable:
        """A new variable for all that these nodes make."""
        places = [place for bound in nodes for place in bound.outputs]
        return self.define(places, nodes[-1].node.name if nodes else self.context.label)

    def name_of(self, bound: BoundNode) -> str:
        """What messages call a node's work."""
        return f"{bound.node.op_type} {(bound.key or bound.node.name)!r} of {self.context.label}"

    def name_of_all(self, bounds: Sequence[BoundNode]) -> str:
        """What messages call the work of several nodes of one kind."""
        return f"{bounds[0].node.op_type} {', '.join(repr(bound.key) for bound in bounds)} of {self.context.label}"

    def pushed(self) -> PushedStep:
        """The run, once all its nodes are pushed."""
        outputs = self.variables_of(self.plan.outputs.values())
        return PushedStep(self.plan, self.table, outputs, tuple(self.barriers), self.hands.device, self.ending)
