"""The pass that has forward values computed again in the backward part, where that holds fewer bytes.

`cheap` drops what takes few operations for its size (normalizations, pointwise functions, views, pools), from values
that are held anyway. `segments` cuts the forward part where few bytes cross, holds what crosses, and computes all else
of a segment again when the backward part comes to it: Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear
memory cost", 2016, arXiv:1604.06174. A few settings are tried, for `segments` those of `cheap` too, and the one that
holds the fewest bytes is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from weft_graph.cost import operations
from weft_graph.infer import infer
from weft_graph.ir import Node
from weft_graph.layout.live_ranges import read_by
from weft_graph.layout.plan import live_bytes
from weft_graph.names import AGAIN
from weft_graph.passes.again import Parts, chain, computed_again, made_again
from weft_graph.passes.draft import Draft
from weft_graph.passes.options import Options, Recompute
from weft_graph.program import Role
from weft_graph.types import TensorType

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
    """The draft with the copies that its option asks for; as it is where they would save nothing."""
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
