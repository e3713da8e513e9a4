"""Computing forward values again in the backward part, so that they are not held from one to the other.

A copy of a node is called `weft.again/<node>`, and so are its values. It stands right before the first backward node
that reads what it makes. A node that draws random numbers draws the same ones again: see `weft_graph.names.drawn_as`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft_graph.ir import Node, Subgraph
from weft_graph.layout.live_ranges import read_by
from weft_graph.names import AGAIN
from weft_graph.parts import scaled_nodes
from weft_graph.weft_domain import FUSED, UNIQUE_ROWS

MOST_NODES: Final = 1 << 12
"""That make one value again: looking them up takes time for every value that might be dropped."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A training step's nodes, in runnable order, of which `backward` depend on the loss's scale."""

    nodes: tuple[Node, ...]
    backward: frozenset[str]
    """Names of nodes."""
    maker: Mapping[str, Node]
    """The forward node that makes each value of the forward part."""
    held: tuple[str, ...]
    """Forward values whose elements the backward part reads, in the order in which they are made."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Parts:
        backward = scaled_nodes(nodes)
        maker = {name: node for node in nodes if node.name not in backward for name in node.outputs if name}
        read = {name for node in nodes if node.name in backward for name in read_by(node)}
        return cls(tuple(nodes), backward, maker, tuple(name for name in maker if name in read))


def is_repeatable(node: Node) -> bool:
    """Whether running the node again gives the same. What is in a body's loop counts its turns, and is left alone."""
    has_body = any(isinstance(value, Subgraph) for value in node.attributes.values())
    return node.op_type != UNIQUE_ROWS and (not has_body or node.op_type == FUSED)


def made_again(parts: Parts, stops: Collection[str]) -> set[str]:
    """All forward values that nodes which can be run again make of `stops` and what was there from the start."""
    found: set[str] = set()
    for node in parts.nodes:
        if node.name in parts.backward or not is_repeatable(node):
            continue
        if all(name in found or name in stops or name not in parts.maker for name in node.inputs):
            found.update(node.outputs)
    return found


def chain(parts: Parts, value: str, stops: Collection[str], most: int = MOST_NODES) -> list[Node] | None:
    """The forward nodes that make `value` of `stops` and what was there from the start, each after what it reads.

    None where one of them cannot be run again, and where they are more than `most`.
    """
    found: dict[str, Node] = {}
    stack = [(value, False)]
    while stack:
        name, is_open = stack.pop()
        node = parts.maker.get(name)
        if node is None or node.name in found or (name in stops and name != value):
            continue
        if not is_repeatable(node):
            return None
        if is_open:
            found[node.name] = node
            if len(found) > most:
                return None
        else:
            stack.append((name, True))
            stack.extend((read, False) for read in reversed(node.inputs) if read)
    return list(found.values())


def computed_again(parts: Parts, dropped: Collection[str], checkpoints: Collection[str] = ()) -> tuple[Node, ...]:
    """The nodes, in runnable order, with copies that make the `dropped` values again for the backward part.

    What is read to make them is what the backward part holds anyway, is of the `checkpoints`, or is made again too.
    """
    copies = _Copies(parts, (frozenset(parts.held) - frozenset(dropped)) | frozenset(checkpoints))
    result: list[Node] = []
    for node in parts.nodes:
        if node.name in parts.backward:
            read = read_by(node)
            result.extend(copy for value in read if value in dropped for copy in copies.of(value))
            result.append(node.reading({name: copies.names[name] for name in read if name in copies.names}))
        else:
            result.append(node)
    asked = {name for node in result for name in node.inputs}
    return tuple(_without_unread(node, asked) if node.name.startswith(AGAIN) else node for node in result)


class _Copies:
    """The copies so far: `names` has, for each value, that of the copy's."""

    def __init__(self, parts: Parts, stops: Collection[str]) -> None:
        self._parts = parts
        self._stops = stops
        self._there = set(stops)
        self._done: set[str] = set()
        self.names: dict[str, str] = {}

    def of(self, value: str) -> list[Node]:
        """The copies that are missing for the value to be there again, in runnable order."""
        if value in self.names:
            return []
        nodes = chain(self._parts, value, self._there, len(self._parts.nodes))
        assert nodes is not None, f"{value!r} was chosen to be made again, and cannot be"
        return [self._copy(node) for node in nodes if node.name not in self._done]

    def _copy(self, node: Node) -> Node:
        self._done.add(node.name)
        copy = node.reading(self.names)
        made = {name: AGAIN + name for name in node.outputs if name and name not in self._stops}
        self.names.update(made)
        self._there.update(made)
        return replace(copy, name=AGAIN + node.name, outputs=tuple(made.get(name, "") for name in node.outputs))


def _without_unread(node: Node, read: Collection[str]) -> Node:
    return replace(node, outputs=tuple(name if name in read else "" for name in node.outputs))
