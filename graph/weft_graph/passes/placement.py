"""The pass that decides where each node runs, and copies values between places: device placement by annotation.

As NNVM's PlaceDevice has it: what a user has put into a group runs at the group's place, the rest near what it reads.
Backward nodes run where their forward node does, so activations stay and a gradient goes the way of its value back.
A value is copied once for each place that reads it, as soon as it exists: by Copy between the devices of one worker,
by Transfer between workers. Constants are everywhere; inputs and parameters are brought to the place that reads them
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft_graph.errors import GraphRefusedError
from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.names import copy_name, source_of
from weft_graph.passes.draft import Draft, Options
from weft_graph.passes.places import Place, place_of
from weft_graph.types import TensorType
from weft_graph.weft_domain import COPY, TRANSFER


def placement(draft: Draft, options: Options) -> Draft:
    """Decides on which device each node runs, and adds copies between devices."""
    if not options.placement:
        nodes = tuple(replace(node, group="") if node.group else node for node in draft.graph.nodes)
        return draft.having(replace(draft.graph, nodes=nodes), draft.types)
    places = _places(draft.graph.nodes, _read_places(options.placement))
    constants = {constant.name for constant in draft.graph.constants}
    nodes, copied = _with_copies(draft.graph.nodes, places, constants, _parameters(draft))
    types = {**draft.types, **{copy: draft.types[value] for copy, value in copied.items()}}
    return draft.having(replace(draft.graph, nodes=nodes), types)


def _read_places(texts: Mapping[str, str]) -> dict[str, Place]:
    try:
        return {group: place_of(text) for group, text in texts.items()}
    except ValueError as error:
        raise GraphRefusedError(f"placement: {error}") from None


def _parameters(draft: Draft) -> Mapping[str, TensorType]:
    return {parameter.name: parameter.type for parameter in draft.graph.parameters}


def _places(nodes: Sequence[Node], groups: Mapping[str, Place]) -> dict[str, Place]:
    """The place of each node by its name."""
    unused = set(groups) - {node.group for node in nodes}
    if unused:
        raise GraphRefusedError(f"placement: no node is in group {sorted(unused)[0]!r}")
    found: dict[str, Place] = {}
    makers = {name: node for node in nodes for name in node.outputs if name}
    for node in nodes:
        place = _given(node, groups) or _source_place(node, makers, found)
        place = place or next((found[makers[v].name] for v in node.inputs if _is_placed(v, makers, found)), None)
        if place is not None:
            found[node.name] = place
    default = next((found[node.name] for node in nodes if node.name in found), next(iter(groups.values())))
    reading: dict[str, Place] = {}
    # What reads nothing that is placed, ids or a mask that an input makes, runs where it is needed first.
    for node in reversed(nodes):
        if node.name not in found:
            found[node.name] = next((reading[name] for name in node.outputs if name in reading), default)
        reading.update((name, found[node.name]) for name in node.inputs if name)
    return found


def _given(node: Node, groups: Mapping[str, Place]) -> Place | None:
    if not node.group:
        return None
    if node.group not in groups:
        raise GraphRefusedError(
            f"node {node.name!r} ({node.op_type}) is in group {node.group!r}, and placement has no place for it; "
            f"it has {', '.join(map(repr, groups))}",
            node=node.name,
        )
    return groups[node.group]


def _is_placed(value: str, makers: Mapping[str, Node], found: Mapping[str, Place]) -> bool:
    return value in makers and makers[value].name in found


def _source_place(node: Node, makers: Mapping[str, Node], found: Mapping[str, Place]) -> Place | None:
    """The place of the forward node that a backward node is on behalf of, as its name says."""
    source = source_of(node.name)
    if source is None:
        return None
    if source in found:
        return found[source]
    return found.get(makers[source].name) if source in makers else None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A value that is read at a place where it is not made."""

    value: str
    source: Place
    target: Place
    priority: int

    @property
    def name(self) -> str:
        return copy_name(self.value, str(self.target))

    def node(self) -> Node:
        return Node(
            COPY if self.source.stage == self.target.stage else TRANSFER,
            self.name,
            (self.value,),
            (self.name,),
            {"source": str(self.source), "target": str(self.target), "priority": self.priority},
            WEFT_DOMAIN,
            str(self.target),
        )


def _with_copies(
    nodes: Sequence[Node], places: Mapping[str, Place], constants: Iterable[str], parameters: Mapping[str, TensorType]
) -> tuple[tuple[Node, ...], dict[str, str]]:
    """The nodes, each behind the copies that it reads, and for each copy the value that it is of."""
    homes = {name: places[node.name] for node in nodes for name in node.outputs if name}
    everywhere = set(constants)
    wanted: dict[str, dict[Place, _Wanted]] = {}
    placed: list[Node] = []
    for node in nodes:
        place = places[node.name]
        reads = []
        for name in node.inputs:
            home = place if not name or name in everywhere else homes.setdefault(name, place)
            if home == place:
                reads.append(name)
            else:
                number = sum(map(len, wanted.values()))
                copy = wanted.setdefault(name, {}).setdefault(place, _Wanted(name, home, place, number))
                reads.append(copy.name)
        placed.append(replace(node, inputs=tuple(reads), group=str(place)))
    made = {name for node in nodes for name in node.outputs}
    result: list[Node] = []
    # Of an input the copy comes first of all; of a parameter where it is fetched, which is at its first reader.
    for value, copies in wanted.items():
        if value not in made and value not in parameters:
            result += [copy.node() for copy in copies.values()]
    fetched: set[str] = set()
    for node in placed:
        for name in node.inputs:
            if name in parameters and name in wanted and name not in fetched:
                fetched.add(name)
                result += [copy.node() for copy in wanted[name].values()]
        result.append(node)
        for name in node.outputs:
            result += [copy.node() for copy in wanted.get(name, {}).values()]
    return tuple(result), {copy.name: copy.value for copies in wanted.values() for copy in copies.values()}
