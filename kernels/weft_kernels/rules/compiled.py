"""Compiles a user's rule: what it computes of numbers once for an update, and what it computes of arrays as a body.

A rule that goes element by element runs as a fused body does, in blocks that stay in the cache: what it makes on the
way lies in a few arrays of a block's size, and the bits are the same for any cut. Any other runs on whole keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_graph.errors import GraphError
from weft_graph.ir import Node, Subgraph
from weft_graph.rules.binding import BoundRule, bound_rule
from weft_graph.rules.graph import GRADIENT, STEP, WEIGHT, RuleGraph, rule_graph_from_json
from weft_graph.rules.parts import why_whole
from weft_graph.schema import schema_of
from weft_graph.types import DType
from weft_kernels.blocks import FUSED_ELEMENTS
from weft_kernels.body import Body, Same
from weft_kernels.fused_body import Program, program_of
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.rules.cache_blocks import cache_blocks
from weft_kernels.rules.half import with_half
from weft_kernels.rules.record import Hyper, Rule, State
from weft_kernels.rules.scratch import scratch

PROGRAMS_KEPT: Final = 256
"""Of a rule that needs keys whole, one for each shape: more than a model has."""


def compiled(document: Mapping[str, Any]) -> Rule:
    """The rule that a document describes. Raises ValueError, naming what is wrong with it."""
    try:
        rule = rule_graph_from_json(document)
    except GraphError as error:
        raise ValueError(f"rule: {error.message}") from None
    whole = why_whole(rule) is not None
    counts = any(STEP in node.inputs for node in rule.graph.nodes)
    apply = with_half(_Compiled(rule, whole=whole).apply, whole=whole)
    return Rule(rule.name, dict(rule.state), dict(rule.hyper), apply, whole, counts=counts)


class _Compiled:
    """Runs a rule on keys, or parts of keys unless it needs them `whole`."""

    def __init__(self, rule: RuleGraph, *, whole: bool) -> None:
        self._rule = rule
        self._whole = whole
        self._bound: dict[tuple[str, tuple[int, ...] | None], _Bound] = {}

    def apply(self, weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        """As of every rule. Raises KernelError."""
        met = (weight.dtype.name, weight.shape if self._whole else None)
        bound = self._bound.get(met)
        if bound is None:
            if len(self._bound) >= PROGRAMS_KEPT:
                self._bound = {}
            bound = self._bound[met] = _Bound(self._rule, bound_rule(self._rule, DType(met[0]), met[1]))
        arrays = {WEIGHT: weight, GRADIENT: gradient, **{name: state[name] for name in self._rule.state}}
        if self._whole and self._rule.is_flat:
            arrays = {name: array.reshape(-1) for name, array in arrays.items()}
        numbers, parts = bound.numbers(step, hyper), tuple(arrays.values())
        for part in (parts,) if self._whole else cache_blocks(parts, FUSED_ELEMENTS):
            bound.update(dict(zip(arrays, part, strict=True)), numbers, whole=self._whole)


class _Bound:
    """A rule for keys of one element type, and of one shape if it needs them whole."""

    def __init__(self, rule: RuleGraph, bound: BoundRule) -> None:
        first, rest = bound.graph.nodes[: bound.numbers], bound.graph.nodes[bound.numbers :]
        self._next = dict(rule.next)
        self._given = [(each.name, each.type.dtype.numpy) for each in bound.graph.inputs if not each.type.rank]
        given = tuple(name for name, _ in self._given)
        read = {*(name for node in rest for name in node.inputs), *self._next.values()}
        told = [name for name in (*given, *(name for node in first for name in node.outputs)) if name in read]
        made = {name for node in rest for name in node.outputs} & set(self._next.values())
        self._of_numbers = _part(bound, given, first, told)
        self._numbers = Body(KernelContext(""), self._of_numbers, ())
        self._of_arrays = _part(bound, (*rule.arrays, *told), rest, sorted(made))
        self._arrays = Body(KernelContext(""), self._of_arrays, ())
        self._types = tuple(bound.types[name] for name in self._of_arrays.inputs)
        self._blocks: _Blocks | None = None
        self._started: tuple[tuple[float, ...], tuple[Array, ...]] = ((), ())

    def numbers(self, step: int, hyper: Hyper) -> tuple[Array, ...]:
        """What is computed of numbers alone. A key's slices ask for the same, one after the other."""
        asked = tuple(step if name == STEP else hyper[name] for name, _ in self._given)
        before, numbers = self._started
        if not before or before != asked:
            numbers = self._numbers(
                [np.asarray(each, kind) for each, (_, kind) in zip(asked, self._given, strict=True)]
            )
            self._started = asked, numbers
        return numbers

    def update(self, arrays: Mapping[str, Array], numbers: Sequence[Array], *, whole: bool) -> None:
        """Writes weight and states among `arrays`, which are a key's if they are `whole`, else of any part of it."""
        if whole:
            results: Sequence[Array] = self._arrays([*arrays.values(), *numbers])
        else:
            if self._blocks is None:
                self._blocks = _Blocks(program_of(Same(self._of_arrays), self._types), self._of_arrays, self._next)
            results = self._blocks.run(arrays, numbers)
        values = {**arrays, **dict(zip(self._of_numbers.outputs, numbers, strict=True))}
        values.update(zip(self._of_arrays.outputs, results, strict=True))
        moved = [(arrays[name], values[value]) for name, value in self._next.items()]
        # A state may become another input as it was: what is written first must not be read later.
        safe = [
            (target, result.copy() if any(np.may_share_memory(result, other) for other, _ in moved) else result)
            for target, result in moved
            if result is not target
        ]
        for target, result in safe:
            target[...] = result


def _part(bound: BoundRule, inputs: tuple[str, ...], nodes: Sequence[Node], outputs: Sequence[str]) -> Subgraph:
    read = {*(name for node in nodes for name in node.inputs), *outputs}
    constants = tuple(each for each in bound.graph.constants if each.name in read)
    return Subgraph(inputs, (), tuple(nodes), tuple(outputs), constants)


class _Blocks:
    """Runs a body on blocks."""

    def __init__(self, program: Program, body: Subgraph, following: Mapping[str, str]) -> None:
        self._program = program
        self._targets = [_written_by(output, body.nodes, following) for output in body.outputs]

    def run(self, arrays: Mapping[str, Array], numbers: Sequence[Array]) -> list[Array]:
        """The body's outputs: among `arrays`, or good until the next run."""
        if not self._targets:
            return []
        program, weight = self._program, arrays[WEIGHT]
        spare = scratch((*program.buffers, *program.results), max(array.size for array in arrays.values()))
        buffers, made = spare[: len(program.buffers)], spare[len(program.buffers) :]
        results = [
            each[: weight.size].reshape(weight.shape) if target is None else arrays[target]
            for target, each in zip(self._targets, made, strict=True)
        ]
        program.run([*arrays.values(), *numbers], buffers, results)
        return results


def _written_by(output: str, nodes: Sequence[Node], following: Mapping[str, str]) -> str | None:
    """The array that becomes `output`, if the node that makes it may write it there: nothing else reads what was
    there, then or later."""
    ((place, maker),) = ((place, node) for place, node in enumerate(nodes) if output in node.outputs)
    allowed = schema_of(maker).in_place
    for name, value in following.items():
        if value != output or name in following.values() or any(name in node.inputs for node in nodes[place + 1 :]):
            continue
        if allowed is None or all(index in allowed for index, read in enumerate(maker.inputs) if read == name):
            return name
    return None
