"""Values that are computed again rather than kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from weft_graph.cost import operations
from weft_graph.infer import infer
from weft_graph.ir import Node, Subgraph
from weft_graph.layout.live_ranges import read_by
from weft_graph.layout.plan import live_bytes
from weft_graph.names import AGAIN
from weft_graph.passes.draft import Draft, Options, Recompute
from weft_graph.program import Role, scaled_nodes
from weft_graph.types import TensorType
from weft_graph.weft_domain import FUSED, UNIQUE_ROWS

# --- Computing forward values again in the backward part, so that they are not held from one to the other -------------
# A copy of a node is called `weft.again/<node>`, and so are its values. It stands right before the first backward
# node that reads what it makes. A node that draws random numbers draws the same ones again: see
# `weft_graph.names.drawn_as`.


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


USUAL_DIM: Final = 32
"""What a named dimension is taken as where nobody says: sizes are only compared with each other."""
CHEAP_OPERATIONS: Final = 16
"""For each element that a node reads or writes: a normalization takes 5, a convolution hundreds."""
CHAINS: Final = (1, 2, 4, 8)
"""How many dropped values may hang on each other: each is made from the one before, so all of them are back at once."""
SEGMENTS: Final = (2, 3, 4, 6, 8, 12, 16, 24)
MOST_ADDED: Final = 1 / 3
"""Of all operations, those that may be added: the forward part is about a third of a training step."""
SMALL: Final = 1 / 1024
"""A value that takes less of what is held is not worth a node; where thousands are held, half of the mean is enough."""


def recompute(draft: Draft, options: Options) -> Draft:
    """Computes values again in the backward pass instead of keeping them, where the job's `recompute` saves memory."""
    if options.recompute is Recompute.OFF or draft.role is not Role.TRAIN:
        return draft
    step = _Step.of(draft, options.dims)
    best, least = draft.graph.nodes, step.live(draft.graph.nodes)
    most = step.operations(best) * (1 + MOST_ADDED)
    for choice in step.choices(options.recompute):
        nodes = computed_again(step.parts, choice.dropped, choice.checkpoints)
        live = step.live(nodes)
        if live < least and step.operations(nodes) <= most:
            best, least = nodes, live
    return draft.having(replace(draft.graph, nodes=tuple(best)))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Values that the backward part makes again, and further ones that are held for that."""

    dropped: frozenset[str]
    checkpoints: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Step:
    """A training step at given sizes, as far as choosing needs it."""

    parts: Parts
    types: Mapping[str, TensorType]
    kept: tuple[str, ...]

    @classmethod
    def of(cls, draft: Draft, dims: Mapping[str, int]) -> _Step:
        named = {dim for input_ in draft.graph.inputs for dim in input_.type.shape if isinstance(dim, str)}
        filled = {**dict.fromkeys(named, USUAL_DIM), **dims}
        parameters = tuple(replace(each, type=each.type.bind(filled)) for each in draft.graph.parameters)
        types = infer(replace(draft.graph, parameters=parameters), filled)
        copies = {AGAIN + name: type_ for name, type_ in types.items()}
        return cls(Parts.of(draft.graph.nodes), {**types, **copies}, draft.roots)

    def size(self, name: str) -> int:
        type_ = self.types[name]
        return type_.nbytes if type_.is_static else 0

    def live(self, nodes: Sequence[Node]) -> int:
        return live_bytes(nodes, self.types, self.kept)

    def operations(self, nodes: Iterable[Node]) -> int:
        return sum(self._operations(node) for node in nodes)

    def _operations(self, node: Node) -> int:
        reads = [self.types[name] if name else None for name in node.inputs]
        writes = [self.types[name] for name in node.outputs if name]
        if not all(type_ is None or type_.is_static for type_ in (*reads, *writes)):
            return 0
        return operations(node, reads, writes)

    def choices(self, mode: Recompute) -> Iterator[_Choice]:
        """What may be dropped, one of which is to be taken."""
        yield from (self._cheap(longest) for longest in CHAINS)
        if mode is Recompute.SEGMENTS:
            yield from (self._segments(count) for count in SEGMENTS)

    def _worth(self) -> tuple[str, ...]:
        """Held values that are large enough, and whose sizes are known."""
        least = min(SMALL, 0.5 / max(len(self.parts.held), 1)) * sum(map(self.size, self.parts.held))
        return tuple(name for name in self.parts.held if self.size(name) > least)

    def _cheap(self, longest: int) -> _Choice:
        """Held values that cheap nodes make of other held ones, at most `longest` of them in a row."""
        dropped: dict[str, int] = {}
        held = set(self.parts.held)
        for name in self._worth():
            nodes = chain(self.parts, name, held)
            if nodes is None or not all(map(self._is_cheap, nodes)):
                continue
            behind = [dropped[read] for node in nodes for read in node.inputs if read in dropped]
            if max(behind, default=0) < longest:
                dropped[name] = max(behind, default=0) + 1
                held.remove(name)
        return _Choice(frozenset(dropped))

    def _is_cheap(self, node: Node) -> bool:
        elements = sum(
            self.types[name].size for name in (*node.inputs, *node.outputs) if name and self.types[name].is_static
        )
        return self._operations(node) <= CHEAP_OPERATIONS * elements

    def _segments(self, count: int) -> _Choice:
        """All that is held in each but the last of `count` segments, less what crosses from one to the next."""
        forward = [node for node in self.parts.nodes if node.name not in self.parts.backward]
        held = set(self.parts.held)
        made = list(accumulate(sum(self.size(name) for name in node.outputs if name in held) for node in forward))
        crossing = _Crossing(forward, self.size)
        crosses: set[str] = set()
        last = 0
        for number in range(1, count):
            near = [i for i, part in enumerate(made) if abs(part - made[-1] * number / count) * 2 * count <= made[-1]]
            if near:
                last = min(near, key=lambda index: (crossing.nbytes[index], -index))
                crosses.update(crossing.at(last))
        inside = {name for node in forward[: last + 1] for name in node.outputs}
        candidates = [name for name in self._worth() if name in inside and name not in crosses]
        again = made_again(self.parts, (held - set(candidates)) | crosses)
        return _Choice(frozenset(name for name in candidates if name in again), frozenset(crosses))


class _Crossing:
    """What exists behind each forward node and is read by a later one, of what the forward part makes."""

    def __init__(self, forward: Sequence[Node], size: Callable[[str], int]) -> None:
        self._last = {name: index for index, node in enumerate(forward) for name in read_by(node)}
        self._made = {name: index for index, node in enumerate(forward) for name in node.outputs if name}
        changes = [0] * (len(forward) + 1)
        for name, index in self._made.items():
            if self._last.get(name, -1) > index:
                changes[index] += size(name)
                changes[self._last[name]] -= size(name)
        self.nbytes = list(accumulate(changes[:-1]))

    def at(self, index: int) -> set[str]:
        return {name for name, made in self._made.items() if made <= index < self._last.get(name, -1)}
