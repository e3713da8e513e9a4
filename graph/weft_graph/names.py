"""Names of values and nodes: where they are defined, which are defined twice, and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from weft_graph.ir import Graph, Node, Subgraph
from weft_graph.json_place import escape_token
from weft_graph.limits import MOST_NESTED

RESERVED_PREFIX: Final = "weft."
"""Names that begin so are the converter's; a user's graph has none of them."""

AGAIN: Final = "weft.again/"
"""What begins the name of a node that computes again what the node of the rest of the name computed."""

TABLE_ROWS: Final = "weft.rows/"
"""What begins the name of the rows of the table of the rest of the name that a step reads, each once."""

TABLE_IDS: Final = "weft.rows_ids/"
"""The same of these rows' ids."""

TABLE_INDEX: Final = "weft.row_index/"
"""The same of where among these rows a reader finds its own: `weft.row_index/KEY:0`."""

_GRADIENT: Final = "weft.grad/"
_REPEATED: Final = "weft.repeated/"
"""What begins the name of a node of a body that is repeated in the body's derivative: `weft.repeated/2/dropout`."""


def gradient_name(source: str, op_type: str) -> str:
    """Of a backward node on behalf of `source`, a forward node or a value whose gradients it adds up."""
    return f"{_GRADIENT}{drawn_as(source)}/{op_type}"


def source_of(node: str) -> str | None:
    """What the backward node of this name is on behalf of; None for other nodes."""
    return node.removeprefix(_GRADIENT).rpartition("/")[0] if node.startswith(_GRADIENT) else None


def fused_name(root: str) -> str:
    """Of the node that a group with this last node becomes."""
    return f"weft.fused/{root}"


def pooled_name(output: str) -> str:
    """Of what a pool gives before the Relu that makes the value `output` of it."""
    return f"weft.pooled/{output}"


def copy_name(value: str, target: str) -> str:
    """Of the copy of a value at the place `target`, and of the node that makes it."""
    return f"weft.copy/{value}@{target}"


def drawn_as(node: str) -> str:
    """The name that keys a node's random numbers: what is computed again draws the same ones."""
    while node.startswith((AGAIN, _REPEATED)):
        node = node.removeprefix(AGAIN)
        if node.startswith(_REPEATED):
            node = node.removeprefix(_REPEATED).partition("/")[2]
    return node


def repeated(name: str, names: FreshNames) -> str:
    """A new name for a node that repeats the node `name`, with the same random numbers."""
    return names.fresh_between(_REPEATED, drawn_as(name))


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
    """Every node's name, also of those in bodies."""
    for node, pointer in all_nodes(graph.nodes):
        yield Definition(node.name, f"{pointer}/name", node.name)


def all_nodes(nodes: Iterable[Node], pointer: str = "", depth: int = 0) -> Iterator[tuple[Node, str]]:
    """Nodes and those in their bodies, each with its pointer; a body's behind the node that has it.

    Bodies further inside than a legal graph has them are left out.
    """
    for index, node in enumerate(nodes):
        place = f"{pointer}/nodes/{index}"
        yield node, place
        if depth < MOST_NESTED:
            for name, body in bodies_of(node).items():
                yield from all_nodes(body.nodes, f"{place}/attributes/{escape_token(name)}", depth + 1)


def bodies_of(node: Node) -> dict[str, Subgraph]:
    """The node's bodies by the names of its attributes."""
    return {name: value for name, value in node.attributes.items() if isinstance(value, Subgraph)}


def body_values(body: Subgraph) -> Iterator[str]:
    """Names of a body's values: what it reads, its constants and what its nodes make."""
    yield from body.inputs
    yield from body.captured
    yield from (constant.name for constant in body.constants)
    yield from (name for node in body.nodes for name in node.outputs if name)


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

    def fresh_between(self, head: str, tail: str) -> str:
        """`head`, the first number that makes the name free, `/` and `tail`."""
        stem = f"{head}{tail}"
        number = self._next.get(stem, 0) + 1
        while f"{head}{number}/{tail}" in self._taken:
            number += 1
        self._next[stem] = number
        self._taken.add(f"{head}{number}/{tail}")
        return f"{head}{number}/{tail}"


@dataclass(frozen=True, slots=True)
class Names:
    """What makes the names of new values, and those of new nodes."""

    values: FreshNames
    nodes: FreshNames

    @classmethod
    def of(cls, graph: Graph, *taken: str) -> Names:
        """Names that the graph has not; those of values are none of `taken` either."""
        values = FreshNames([*taken, *(definition.name for definition in value_definitions(graph))])
        return cls(values, FreshNames(definition.name for definition in node_definitions(graph)))
