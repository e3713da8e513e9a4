"""Compiles a user's rule: the graph's nodes in order, with their kernels, for each element type and shape met once.

A rule that goes element by element runs in blocks that stay in the cache, so that what it makes on the way costs no
memory however large the arrays are; the bits are the same for any cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from weft_graph.errors import GraphError
from weft_graph.ir import AttributeValue, Node
from weft_graph.rules.binding import BoundRule, bound_rule
from weft_graph.rules.graph import STEP, WEIGHT, RuleGraph, rule_graph_from_json
from weft_graph.rules.parts import why_whole
from weft_graph.schema import schema_of
from weft_graph.types import DType, array_text
from weft_kernels.kernel import Array, Kernel, KernelContext, kernel_of
from weft_kernels.rules.cache_blocks import cache_blocks
from weft_kernels.rules.half import with_half
from weft_kernels.rules.record import Hyper, Rule, State
from weft_kernels.run import KernelError

PROGRAMS_KEPT: Final = 256
"""Of a rule that needs keys whole, one for each shape: more than a model has."""


def compiled(document: Mapping[str, Any]) -> Rule:
    """The rule that a document describes. Raises ValueError, naming what is wrong with it."""
    try:
        rule = rule_graph_from_json(document)
    except GraphError as error:
        raise ValueError(f"rule: {error.message}") from None
    whole = why_whole(rule) is not None
    run = _Whole(rule) if whole else _Pointwise(rule)
    counts = any(STEP in node.inputs for node in rule.graph.nodes)
    apply = with_half(run.apply, whole=whole)
    return Rule(rule.name, dict(rule.state), dict(rule.hyper), apply, whole, counts=counts)


@dataclass(frozen=True, slots=True)
class _Call:
    """A node with what it takes to run it. Values are numbered; -1 is an input that is left out."""

    node: Node
    kernel: Kernel
    context: KernelContext
    attributes: Mapping[str, AttributeValue]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    spent: tuple[int, ...]
    """Values that no later call reads."""

    def run(self, values: list[Array | None]) -> None:
        inputs = [values[place] if place >= 0 else None for place in self.reads]
        try:
            outputs = self.kernel(self.context, inputs, self.attributes)
        except (ValueError, MemoryError) as error:
            shown = ", ".join(array_text(each) for each in inputs if each is not None)
            raise KernelError(f"node {self.node.name!r} ({self.node.op_type}): {error} [{shown}]") from error
        for place in self.spent:
            values[place] = None
        for place, output in zip(self.writes, outputs[: len(self.writes)], strict=True):
            if place >= 0:
                values[place] = output


class _Program:
    """A bound rule's calls: `numbers` run once for an update, `arrays` for each block or for the key."""

    def __init__(self, rule: RuleGraph, bound: BoundRule) -> None:
        graph = bound.graph
        kept = {input_.name for input_ in graph.inputs} | {constant.name for constant in graph.constants}
        names = sorted(kept)
        names += [name for node in graph.nodes for name in node.outputs if name]
        self._places = {name: place for place, name in enumerate(names)}
        self._first: list[Array | None] = [None] * len(names)
        for constant in graph.constants:
            self._first[self._places[constant.name]] = constant.array
        self._started: tuple[tuple[float, ...], list[Array | None]] = ((), [])
        self._numbers = [(input_.name, input_.type.dtype.numpy) for input_ in graph.inputs if not input_.type.rank]
        calls = list(self._calls(graph.nodes, kept | set(rule.next.values())))
        # What numbers leave is read by every block.
        self.numbers = [replace(call, spent=()) for call in calls[: bound.numbers]]
        left = {place for call in self.numbers for place in call.writes}
        self.arrays = [
            replace(call, spent=tuple(place for place in call.spent if place not in left))
            for call in calls[bound.numbers :]
        ]
        self.inputs = [(name, self._places[name]) for name in rule.arrays]
        self.results = [(name, self._places[value]) for name, value in rule.next.items()]

    def start(self, step: int, hyper: Hyper) -> list[Array | None]:
        """Values with the numbers worked out. A key's slices ask for the same ones, one after the other."""
        asked = (step, *(hyper[name] for name, _ in self._numbers if name != STEP))
        before, values = self._started
        if before == asked:
            return values
        values = list(self._first)
        for name, dtype in self._numbers:
            values[self._places[name]] = np.asarray(step if name == STEP else hyper[name], dtype)
        for call in self.numbers:
            call.run(values)
        self._started = asked, values
        return values

    def update(self, numbers: Sequence[Array | None], arrays: Mapping[str, Array]) -> None:
        """Runs the calls on `arrays` and writes weight and state among them."""
        values = list(numbers)
        for name, place in self.inputs:
            values[place] = arrays[name]
        for call in self.arrays:
            call.run(values)
        results = [(arrays[name], values[place]) for name, place in self.results]
        # A state may become another input as it was: what is written first must not be read later.
        safe = [
            (target, result.copy() if any(np.may_share_memory(result, other) for other, _ in results) else result)
            for target, result in results
            if result is not None and result is not target
        ]
        for target, result in safe:
            target[...] = result

    def _calls(self, nodes: Sequence[Node], kept: Iterable[str]) -> Iterable[_Call]:
        last = {name: index for index, node in enumerate(nodes) for name in (*node.outputs, *node.inputs) if name}
        for name in kept:
            last.pop(name, None)
        spent: dict[int, list[int]] = {}
        for name, index in last.items():
            spent.setdefault(index, []).append(self._places[name])
        for index, node in enumerate(nodes):
            reads = tuple(self._places[name] if name else -1 for name in node.inputs)
            writes = tuple(self._places[name] if name else -1 for name in node.outputs)
            context = KernelContext(node=node.name, asked=node.outputs)
            attributes = schema_of(node).attributes_of(node)
            spent_here = tuple(place for place in spent.get(index, ()) if place not in writes)
            yield _Call(node, kernel_of(node), context, attributes, reads, writes, spent_here)


class _Pointwise:
    """Runs a rule that goes element by element on any part of a key."""

    def __init__(self, rule: RuleGraph) -> None:
        self._rule = rule
        self._programs: dict[str, _Program] = {}

    def apply(self, weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        program = self._programs.get(weight.dtype.name)
        if program is None:
            bound = bound_rule(self._rule, DType(weight.dtype.name), None)
            program = self._programs[weight.dtype.name] = _Program(self._rule, bound)
        arrays = {WEIGHT: weight, "gradient": gradient, **{name: state[name] for name in self._rule.state}}
        numbers = program.start(step, hyper)
        for block in cache_blocks(tuple(arrays.values())):
            program.update(numbers, dict(zip(arrays, block, strict=True)))


class _Whole:
    """Runs any other rule, on whole keys."""

    def __init__(self, rule: RuleGraph) -> None:
        self._rule = rule
        self._programs: dict[tuple[str, tuple[int, ...]], _Program] = {}

    def apply(self, weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        met = (weight.dtype.name, weight.shape)
        program = self._programs.get(met)
        if program is None:
            if len(self._programs) >= PROGRAMS_KEPT:
                self._programs = {}
            bound = bound_rule(self._rule, DType(weight.dtype.name), weight.shape)
            program = self._programs[met] = _Program(self._rule, bound)
        arrays = {WEIGHT: weight, "gradient": gradient, **{name: state[name] for name in self._rule.state}}
        if self._rule.is_flat:
            arrays = {name: array.reshape(-1) for name, array in arrays.items()}
        program.update(program.start(step, hyper), arrays)
