"""The pass that makes one node of pointwise nodes that read each other: loop fusion of element-wise operators.

A value that only the group reads is never written to memory then, and one that others read later is written and not
read again: what is computed for a few thousand elements stays in the cache, or in a register on a GPU. A group grows
from its last node towards what that reads, over nodes of the same shape all of whose other readers come later, so that
nothing is computed twice and no cycle can arise. What broadcasts to the shape is read where it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft_graph.ir import WEFT_DOMAIN, Node, Subgraph
from weft_graph.names import fused_name
from weft_graph.passes.draft import Draft, Options, made
from weft_graph.schema import schema_of
from weft_graph.types import TensorType
from weft_graph.weft_domain import FUSED, is_communication

MOST_NODES: Final = 64
"""Of one group: a kernel's text is compiled while a worker waits for it."""
MOST_INPUTS: Final = 24


def fusion(draft: Draft, options: Options) -> Draft:
    """Joins element-wise nodes that read each other into one."""
    if not options.fusion:
        return draft
    reads = _Reads(draft)
    groups = reads.groups()
    if not groups:
        return draft
    inside = {place for group in groups for place in group}
    last = {group[-1]: group for group in groups}
    nodes = draft.graph.nodes
    kept = [
        _fused([nodes[member] for member in last[place]], reads.outside(last[place])) if place in last else node
        for place, node in enumerate(nodes)
        if place in last or place not in inside
    ]
    return draft.having(replace(draft.graph, nodes=tuple(kept)), draft.types)


def _fused(members: Sequence[Node], outside: Collection[str]) -> Node:
    """`outside` are values that others read. The last node's comes first: it alone may lie in the place of an input."""
    inner = set(made(members))
    inputs = tuple(dict.fromkeys(name for node in members for name in node.inputs if name and name not in inner))
    root = members[-1]
    outputs = tuple(dict.fromkeys((*made([root]), *(name for name in made(members) if name in outside))))
    body = Subgraph(inputs, (), tuple(replace(node, group="") for node in members), outputs)
    return Node(FUSED, fused_name(root.name), inputs, outputs, {"body": body}, WEFT_DOMAIN, root.group)


@dataclass(frozen=True, slots=True)
class _Group:
    """A group that grows: `members` by their places, all of which write `shape`."""

    root: int
    type: TensorType
    members: set[int]


class _Reads:
    """Who makes and who reads what, by the places of nodes."""

    def __init__(self, draft: Draft) -> None:
        self.nodes = draft.graph.nodes
        self.types: Mapping[str, TensorType] = draft.types
        self.asked: Collection[str] = set(draft.roots)
        self.makers = {name: place for place, node in enumerate(self.nodes) for name in node.outputs if name}
        self.readers: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            for name in node.inputs:
                self.readers.setdefault(name, []).append(place)
        self.fusible = [self._is_fusible(node) for node in self.nodes]
        self.taken: set[int] = set()

    def outside(self, members: Sequence[int]) -> set[str]:
        """The values of a group that nodes outside read."""
        values = made([self.nodes[member] for member in members])
        return {name for name in values if any(reader not in members for reader in self.readers.get(name, ()))}

    def groups(self) -> list[list[int]]:
        """Groups of two and more, each in the order of the nodes."""
        found = []
        for root in reversed(range(len(self.nodes))):
            if self.fusible[root] and root not in self.taken:
                members = self._grown(root)
                if len(members) > 1:
                    self.taken |= members
                    found.append(sorted(members))
        return found

    def _is_fusible(self, node: Node) -> bool:
        if is_communication(node):
            return False
        outputs = [name for name in node.outputs if name]
        type_ = self.types[outputs[0]] if len(outputs) == 1 else None
        return schema_of(node).pointwise and type_ is not None and type_.rank > 0 and type_.is_known

    def _grown(self, root: int) -> set[int]:
        """The group that ends at `root`; the later of two nodes is looked at first, so that all its readers are in."""
        group = _Group(root, self.types[self.nodes[root].outputs[0]], {root})
        waiting = [-place for place in self._makers_of(root)]
        heapq.heapify(waiting)
        seen = set(waiting)
        while waiting:
            place = -heapq.heappop(waiting)
            if not self._belongs(place, group):
                continue
            group.members.add(place)
            for maker in self._makers_of(place):
                if -maker not in seen:
                    seen.add(-maker)
                    heapq.heappush(waiting, -maker)
        return group.members

    def _makers_of(self, place: int) -> set[int]:
        return {self.makers[name] for name in self.nodes[place].inputs if name in self.makers}

    def _belongs(self, place: int, group: _Group) -> bool:
        node = self.nodes[place]
        if not self.fusible[place] or place in self.taken or len(group.members) >= MOST_NODES:
            return False
        (output,) = (name for name in node.outputs if name)
        return (
            node.group == self.nodes[group.root].group
            and self.types[output].shape == group.type.shape
            and output not in self.asked
            and all(reader > group.root for reader in self._others(output, group))
            and self._has_room(place, group)
            and not self._holds_more(place, group)
        )

    def _has_room(self, place: int, group: _Group) -> bool:
        members = [self.nodes[member] for member in (*group.members, place)]
        inner = set(made(members))
        return len({name for node in members for name in node.inputs if name and name not in inner}) <= MOST_INPUTS

    def _others(self, value: str, group: _Group) -> list[int]:
        return [reader for reader in self.readers.get(value, ()) if reader not in group.members]

    def _holds_more(self, place: int, group: _Group) -> bool:
        """Whether a late group would hold values for long that the node, run where it stands, lets go of.

        One such value waits in the place of the node's own output; more of them take more memory than there was.
        """
        if all(between in group.members for between in range(place + 1, group.root)):
            return False
        held = {
            name
            for name in self.nodes[place].inputs
            if name in self.makers
            and self.types[name].rank
            and (last := max(self.readers[name])) < group.root
            and last not in group.members
        }
        return len(held) > 1
