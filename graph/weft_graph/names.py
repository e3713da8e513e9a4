"""Names of values and nodes: where they are defined, which are defined twice, and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from weft_graph.ir import Graph

RESERVED_PREFIX: Final = "weft."
"""Names that begin so are the converter's; a user's graph has none of them."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A name and the place that gives it, as a pointer into the graph's JSON form; `node` is the node's name."""

    name: str
    pointer: str
    node: str | None = None


def value_definitions(graph: Graph) -> Iterator[Definition]:
    """Every value's definition: inputs, parameters, constants, nodes' outputs. Outputs left out are skipped."""
    for index, input_ in enumerate(graph.inputs):
        yield Definition(input_.name, f"/inputs/{index}/name")
    for index, parameter in enumerate(graph.parameters):
        yield Definition(parameter.name, f"/parameters/{index}/name")
    for index, constant in enumerate(graph.constants):
        yield Definition(constant.name, f"/constants/{index}/name")
    for index, node in enumerate(graph.nodes):
        for place, output in enumerate(node.outputs):
            if output:
                yield Definition(output, f"/nodes/{index}/outputs/{place}", node.name)


def node_definitions(graph: Graph) -> Iterator[Definition]:
    """Every node's name."""
    for index, node in enumerate(graph.nodes):
        yield Definition(node.name, f"/nodes/{index}/name", node.name)


def duplicates(definitions: Iterable[Definition]) -> Iterator[tuple[Definition, Definition]]:
    """Pairs (first, later) of definitions of one name."""
    first: dict[str, Definition] = {}
    for definition in definitions:
        earlier = first.setdefault(definition.name, definition)
        if earlier is not definition:
            yield earlier, definition


class FreshNames:
    """Makes names that are not taken, the same ones for the same graph."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """`stem` itself where it is free, else `stem` with the first number that makes it free."""
        name, number = stem, self._next.get(stem, 1)
        while name in self._taken:
            number += 1
            name = f"{stem}.{number}"
        self._next[stem] = number
        self._taken.add(name)
        return name
