"""The pass that has products computed in a narrower type than float32: mixed precision.

Parameters stay float32 in the store; each is cast once where it is read. Operators are of three kinds, as their schemas
say: products compute in the narrow type, what they sum is summed in float32 and rounded once; what moves elements, or
is cheap for each of them, follows what it reads; all else (losses, softmax, normalizations, sums over many elements,
exponentials) computes in float32. Values of other types are left alone. The
gradient of a Cast casts back, so that a gradient that is sent has its parameter's type.

Micikevicius et al., "Mixed precision training", ICLR 2018, arXiv:1710.03740.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from weft_graph.ir import Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.passes.draft import Draft, Options, Precision
from weft_graph.schema import OpSchema, schema_of
from weft_graph.types import DType, TensorType

CAST_PREFIX: Final = "weft.cast/"


def precision(draft: Draft, options: Options) -> Draft:
    """Computes products in the job's `precision`, and what follows them element by element."""
    if options.precision is Precision.FLOAT32:
        return draft
    narrowing = _Narrowing(draft.types, DType(options.precision.value), frozenset(_given(draft)))
    for node in draft.graph.nodes:
        narrowing.add(node)
    wide = {name: narrowing.wide(name) for name in draft.roots if name in narrowing.narrow}
    changed = draft.renamed(wide)
    return changed.having(replace(draft.graph, nodes=tuple(narrowing.nodes)))


def _given(draft: Draft) -> set[str]:
    """Parameters and constants: they are cast to whatever the others are."""
    return {each.name for each in draft.graph.parameters} | {each.name for each in draft.graph.constants}


@dataclass(slots=True)
class _Narrowing:
    """The nodes so far. `narrow` are the values that were float32 and are of the narrow type; `casts` the values that
    they, and others, were cast to, by what was cast and to what."""

    types: Mapping[str, TensorType]
    dtype: DType
    given: frozenset[str]
    nodes: list[Node] = field(default_factory=list)
    narrow: set[str] = field(default_factory=set)
    casts: dict[tuple[str, DType], str] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        """The node with its inputs cast to what it computes in, and what it gives noted."""
        schema = schema_of(node)
        floats = [at for at, name in enumerate(node.inputs) if name and self.types[name].dtype is DType.FLOAT32]
        chosen = [at for at in floats if isinstance(schema.follows, bool) or at in schema.follows]
        if not self._is_narrow(node, schema, chosen):
            self.nodes.append(self._reading(node, dict.fromkeys(floats, DType.FLOAT32)))
            return
        self.nodes.append(self._reading(node, {at: self.dtype if at in chosen else DType.FLOAT32 for at in floats}))
        self.narrow.update(name for name in node.outputs if name and self.types[name].dtype is DType.FLOAT32)

    def wide(self, name: str) -> str:
        """The value in float32."""
        return self._as(name, DType.FLOAT32)

    def _is_narrow(self, node: Node, schema: OpSchema, chosen: list[int]) -> bool:
        """Whether it computes in the narrow type, which the operator is defined in."""
        if not chosen or not (schema.product or schema.follows):
            return False
        read = [node.inputs[at] for at in chosen if node.inputs[at] not in self.given]
        if not schema.product and not (read and all(name in self.narrow for name in read)):
            return False
        formals = schema.inputs
        return all(self.dtype in formals[min(at, len(formals) - 1)].dtypes for at in chosen)

    def _reading(self, node: Node, wanted: Mapping[int, DType]) -> Node:
        inputs = tuple(self._as(name, wanted[at]) if at in wanted else name for at, name in enumerate(node.inputs))
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def _as(self, name: str, dtype: DType) -> str:
        """The value in that type: itself, or a Cast, one for all that read it."""
        if (self.dtype if name in self.narrow else DType.FLOAT32) is dtype:
            return name
        if (name, dtype) not in self.casts:
            cast = f"{CAST_PREFIX}{dtype.value}/{name}"
            self.casts[name, dtype] = cast
            self.nodes.append(Node("Cast", cast, (name,), (cast,), {"to": NUMBER_OF_DTYPE[dtype]}))
        return self.casts[name, dtype]
