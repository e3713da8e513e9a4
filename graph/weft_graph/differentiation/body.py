"""A body with its derivative: its own nodes once more, and behind them the backward nodes.

Nothing of the way forward is kept but what the body reads: a body's other values are computed again, by nodes that
draw the same random numbers as those which they repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from weft_graph.ir import Constant, Node, Subgraph
from weft_graph.names import FreshNames, bodies_of, body_values, repeated
from weft_graph.slices import backward_slice


class Walk(Protocol):
    """What `weft_graph.differentiation.walk` says of the body's nodes once it has gone through them."""

    constants: dict[tuple[str, tuple[int, ...], bytes], Constant]
    leads: dict[str, str]
    gradients: dict[str, str]

    @property
    def nodes(self) -> tuple[Node, ...]: ...

    def zeros(self, source: str, like: str) -> str: ...


@dataclass(frozen=True, slots=True)
class DerivedBody:
    """The BodyDerivation of `weft_graph.schema`: a body whose outputs have the gradients `seeds`."""

    body: Subgraph
    walk: Walk
    seeds: Mapping[int, str]

    def gradient(self, value: str) -> str | None:
        return self.walk.gradients.get(value) if value in self.walk.leads else None

    def zeros(self, value: str) -> str:
        return self.walk.zeros(value, value)

    def reads(self, outputs: Sequence[str]) -> set[str]:
        return backward_slice(self.walk.nodes, outputs)[1]

    def closed(self, inputs: Sequence[str], captured: Sequence[str], outputs: Sequence[str]) -> Subgraph:
        nodes, alive = backward_slice(self.walk.nodes, outputs)
        constants = (*self.body.constants, *self.walk.constants.values())
        return Subgraph(
            tuple(inputs),
            tuple(captured),
            nodes,
            tuple(outputs),
            tuple(constant for constant in constants if constant.name in alive),
        )


def repeat(node: Node, names: FreshNames) -> Node:
    """The node, and those in its bodies, under names of nodes that repeat others."""
    bodies = {
        name: replace(body, nodes=tuple(repeat(inner, names) for inner in body.nodes))
        for name, body in bodies_of(node).items()
    }
    return replace(node, name=repeated(node.name, names), attributes={**node.attributes, **bodies})


def seed_name(node: Node, output: int) -> str:
    """What the gradient of output `output` is called in all bodies of the node; in none of them the name is taken."""
    taken = {name for body in bodies_of(node).values() for name in body_values(body)}
    name = f"weft.gradient:{output}"
    while name in taken:
        name += "+"
    return name
