"""The two parts of a user's rule: numbers, which are worked out once for an update, and arrays as large as the key.

A rule never changes and is held against many keys: what was found out about the last ones is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from weft_graph.infer import infer
from weft_graph.ir import Node
from weft_graph.rules.graph import STEP, RuleGraph
from weft_graph.schema import schema_of
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Parts:
    """`numbers` are the values made of step, hyper-parameters and single constants alone, by operators that go element
    by element; `types` are those of the rule as it was written."""

    types: Mapping[str, TensorType]
    numbers: frozenset[str]

    def is_of_numbers(self, node: Node) -> bool:
        return node.outputs[0] in self.numbers


@lru_cache(maxsize=64)
def parts_of(rule: RuleGraph) -> Parts:
    """The parts of a legal rule."""
    types = infer(rule.graph)
    numbers = {STEP, *rule.hyper} & types.keys()
    numbers.update(constant.name for constant in rule.graph.constants if constant.array.ndim == 0)
    for node in rule.graph.nodes:
        if schema_of(node).pointwise and all(name in numbers for name in node.inputs if name):
            numbers.update(name for name in node.outputs if name)
    return Parts(types, frozenset(numbers))


@lru_cache(maxsize=64)
def why_whole(rule: RuleGraph) -> str | None:
    """What about the rule needs a key in one piece; None for a rule that goes element by element."""
    parts = parts_of(rule)
    constants = {constant.name for constant in rule.graph.constants}
    for node in rule.graph.nodes:
        shown = f"node {node.name!r} ({node.op_type})"
        if not schema_of(node).pointwise:
            return f"{shown} does not go element by element"
        for name in node.inputs:
            if name in constants and name not in parts.numbers:
                return f"{shown} reads the constant {name!r} of shape {list(parts.types[name].shape)}"
        # Integers may be worked with in another way where one of them is negative: see Pow.
        for name in node.outputs:
            if name and name not in parts.numbers and parts.types[name].dtype.numpy.kind in "iu":
                return f"{shown} makes integers"
    return None
