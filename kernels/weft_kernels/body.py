"""Runs the body of a control-flow operator, again and again: what does not change between turns is looked up once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from weft_graph.infer import body_types
from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.names import bodies_of, drawn_as
from weft_graph.schema import schema_of
from weft_graph.types import TensorType, array_type
from weft_kernels.errors import failed
from weft_kernels.kernel import Array, Kernel, KernelContext, kernel_of

_BODIES_KEPT = 512
"""Bodies whose steps are remembered: more than the graphs of a few jobs have."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A node of a body, its kernel and whole attributes. `drawn_as` keys its random numbers; `last` are the values that
    no later step reads, `made` the outputs that some step does, or that the body gives, with their places. `by_turn`:
    it draws random numbers, or has a body that may."""

    node: Node
    kernel: Kernel
    attributes: Mapping[str, AttributeValue]
    drawn_as: str
    last: tuple[str, ...]
    made: tuple[tuple[int, str], ...]
    by_turn: bool


class Body:
    """A body with what it captures in place. Call it with its inputs' arrays: it gives its outputs'.

    `captured` and the outputs are the caller's; nothing that is given is written.
    """

    def __init__(self, context: KernelContext, subgraph: Subgraph, captured: Sequence[Array]) -> None:
        self.subgraph = subgraph
        self._context = context
        self._steps = [(step, self._seen_by(step, context.iteration)) for step in _steps(Same(subgraph))]
        self._fixed = dict(zip(subgraph.captured, captured, strict=True))
        place = (lambda array: array) if context.xp is np else context.xp.asarray
        self._fixed.update((constant.name, place(constant.array)) for constant in subgraph.constants)

    def __call__(self, inputs: Sequence[Array], turn: int | None = None) -> tuple[Array, ...]:
        """The outputs of one run. `turn` counts a loop's: random numbers differ between turns.

        Raises KernelError, and what the context's `checkpoint` raises where the run has been given up.
        """
        context = self._context
        if context.checkpoint is not None:
            context.checkpoint()
        iteration = "" if turn is None else f"{context.iteration}#{turn}"
        values = {**self._fixed, **dict(zip(self.subgraph.inputs, inputs, strict=True))}
        for step, seen in self._steps:
            given = [values[name] if name else None for name in step.node.inputs]
            inner = self._seen_by(step, iteration) if iteration and step.by_turn else seen
            try:
                outputs = step.kernel(inner, given, step.attributes)
            except (ValueError, MemoryError) as error:
                raise failed(step.node, given, error) from error
            for name in step.last:
                del values[name]
            for place, name in step.made:
                values[name] = outputs[place]
        return tuple(values[name] for name in self.subgraph.outputs)

    def _seen_by(self, step: _Step, iteration: str) -> KernelContext:
        return self._context.within(step.drawn_as + iteration, step.node.outputs, iteration)

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of the outputs, for a loop of no turns: nothing else says what it would have made.

        A dimension that only a turn would decide counts as none.
        """
        captured = [self._fixed[name] for name in self.subgraph.captured]
        known = {
            name: array
            for name, array in zip(self.subgraph.captured, captured, strict=True)
            if isinstance(array, np.ndarray)
        }
        types = body_types(self.subgraph, (*inputs, *map(array_type, captured)), known)
        return tuple(
            TensorType(type_.dtype, tuple(dim if isinstance(dim, int) else 0 for dim in type_.shape)) for type_ in types
        )


class Same:
    """A body as a key: it is equal to itself alone, and stays alive as long as it is remembered."""

    __slots__ = ("subgraph",)

    def __init__(self, subgraph: Subgraph) -> None:
        self.subgraph = subgraph

    def __hash__(self) -> int:
        return id(self.subgraph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.subgraph is self.subgraph


@lru_cache(maxsize=_BODIES_KEPT)
def _steps(key: Same) -> tuple[_Step, ...]:
    subgraph = key.subgraph
    kept = {*subgraph.outputs, *subgraph.captured, *(constant.name for constant in subgraph.constants)}
    readers = Counter(name for node in subgraph.nodes for name in node.inputs if name)
    readers.update(kept)
    steps = []
    for node in subgraph.nodes:
        read = Counter(name for name in node.inputs if name)
        readers.subtract(read)
        made = tuple((place, name) for place, name in enumerate(node.outputs) if name and readers[name])
        last = tuple(name for name in read if not readers[name])
        schema = schema_of(node)
        by_turn = schema.random or bool(bodies_of(node))
        name, attributes = drawn_as(node.name), schema.attributes_of(node)
        steps.append(_Step(node, kernel_of(node), attributes, name, last, made, by_turn))
    return tuple(steps)
