"""One run of a plan while it is being pushed to the engine."""

from __future__ import annotations

from collections.abc import Iterable
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

    Whole keys and rows are read from `reads`; `nothing` are keys that the barrier declares nothing for. Work reads
    `turn`, the arena's, where the values lie in one. With `part`, the run is one of several that make up a step.
    `sent` and `barriers` grow as nodes are pushed.
    """

    hands: Hands
    plan: Plan
    context: StepContext
    table: ValueTable
    reads: Readable
    nothing: tuple[str, ...] = ()
    turn: tuple[Variable, ...] = ()
    part: StepPart | None = None
    ending: Ending = field(default_factory=Ending)
    sent: list[Variable] = field(default_factory=list)
    barriers: list[Variable] = field(default_factory=list)
    _variables: dict[int, Variable] = field(default_factory=dict)

    def variables_of(self, places: Iterable[int | None]) -> tuple[Variable, ...]:
        """The variables of the values that work makes, each once; what is fed or constant is there already."""
        return tuple(dict.fromkeys(self._variables[place] for place in places if place in self._variables))

    def define(self, places: Iterable[int | None]) -> tuple[Variable, ...]:
        """New variables, for values that work is about to be pushed for."""
        new = [place for place in places if place is not None]
        for place in new:
            self._variables[place] = self.hands.engine.variable(self.plan.names[place])
        return self.variables_of(new)

    def name_of(self, bound: BoundNode) -> str:
        """What messages call a node's work."""
        what = f"{bound.key!r}" if bound.key else f"{bound.node.name!r}"
        return f"{bound.node.op_type} {what} of {self.context.label}"

    def pushed(self) -> PushedStep:
        """The run, once all its nodes are pushed."""
        outputs = self.variables_of(self.plan.outputs.values())
        return PushedStep(self.plan, self.table, outputs, tuple(self.barriers), self.hands.device, self.ending)
