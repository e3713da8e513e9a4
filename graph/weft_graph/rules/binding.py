"""A user's rule as a graph for keys of one type: every value typed, with a cast wherever a number meets arrays.

Values of the element type that the rule was written in become those of the key's, except numbers (see
`weft_graph.rules.parts`), which become float64: Adam's bias correction of a float16 key is not rounded to three digits.
A Cast to the element type that the rule was written in is one to the key's. Other element types stay as they are.

A rule computes on float16 keys in float32, whose elements are rounded once they are written: in float16 an epsilon of
1e-8 is 0, and what squares a gradient is soon 0 or infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft_graph.errors import GraphError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Input, Node
from weft_graph.names import FreshNames, node_definitions, value_definitions
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.rules.graph import RuleGraph
from weft_graph.rules.parts import Parts, parts_of, why_whole
from weft_graph.types import DType, Shape, TensorType

NUMBERS: DType = DType.FLOAT64
"""The element type of numbers: what Python computes the built-in rules' numbers in."""


def computed_in(dtype: DType) -> DType:
    """The element type that a rule computes in, for keys of that one."""
    return DType.FLOAT32 if dtype is DType.FLOAT16 else dtype


@dataclass(frozen=True, slots=True, eq=False)
class BoundRule:
    """A legal graph whose first `numbers` nodes read numbers alone. Inputs and outputs are those of `RuleGraph`.

    `types` has every value's."""

    graph: Graph
    numbers: int
    types: Mapping[str, TensorType]


def bound_rule(rule: RuleGraph, dtype: DType, shape: Shape | None) -> BoundRule:
    """The rule for keys of that element type, and of that shape unless it is None: any shape, element by element.

    Arrays are of the type that it computes in. Raises GraphError where the rule is not for such keys, naming the node.
    """
    arrays = TensorType(computed_in(dtype), rule.type.shape if shape is None else _shape(rule, dtype, shape))
    binder = _Binder(rule, parts_of(rule), arrays)
    graph = binder.graph()
    return BoundRule(graph, len(binder.of_numbers), infer(graph))


def _shape(rule: RuleGraph, dtype: DType, shape: Shape) -> Shape:
    """The shape of the arrays that the rule runs on, for a key of this one."""
    key = TensorType(dtype, shape)
    if rule.is_flat:
        return (key.size,)
    if why_whole(rule) is None:
        return shape
    written = rule.type.shape
    same_rank = len(written) == len(shape)
    sizes = dict(zip(written, shape, strict=True)) if same_rank else {}
    if not same_rank or any(sizes[name] != size for name, size in zip(written, shape, strict=True)):
        raise ShapeError(f"rule {rule.name!r} is for weights of shape [{', '.join(map(str, written))}], not {key}")
    return shape


class _Binder:
    """Writes the graph. `of_numbers` and `of_arrays` are its nodes, constants those that were asked for."""

    def __init__(self, rule: RuleGraph, parts: Parts, arrays: TensorType) -> None:
        self.rule, self.parts, self.arrays = rule, parts, arrays
        self.written = rule.type.dtype
        self.of_numbers: list[Node] = []
        self.of_arrays: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self._given = {constant.name: constant.array for constant in rule.graph.constants}
        taken = (*value_definitions(rule.graph), *node_definitions(rule.graph))
        self._names = FreshNames(definition.name for definition in taken)
        self._casts: dict[str, str] = {}

    def graph(self) -> Graph:
        for node in self.rule.graph.nodes:
            if self.parts.is_of_numbers(node):
                self.of_numbers.append(self._node(node, NUMBERS))
            else:
                self.of_arrays.append(self._node(node, self.arrays.dtype))
        return Graph(
            name=self.rule.graph.name,
            inputs=tuple(map(self._input, self.rule.graph.inputs)),
            parameters=(),
            nodes=(*self.of_numbers, *self.of_arrays),
            outputs=self.rule.graph.outputs,
            constants=tuple(self.constants.values()),
        )

    def _input(self, input_: Input) -> Input:
        if input_.name in self.rule.arrays:
            return replace(input_, type=self.arrays)
        return replace(input_, type=TensorType(NUMBERS, ())) if input_.type.dtype is self.written else input_

    def _node(self, node: Node, dtype: DType) -> Node:
        read = self._number if dtype is NUMBERS and self.parts.is_of_numbers(node) else self._beside_arrays
        attributes = node.attributes
        if node.op_type == "Cast" and attributes["to"] == NUMBER_OF_DTYPE[self.written]:
            attributes = {**attributes, "to": NUMBER_OF_DTYPE[dtype]}
        return replace(node, inputs=tuple(name and read(name) for name in node.inputs), attributes=attributes)

    def _number(self, name: str) -> str:
        """The name of a number, as other numbers read it."""
        if name in self._given:
            self.constants[name] = Constant(name, self._as(self._given[name], NUMBERS))
        return name

    def _beside_arrays(self, name: str) -> str:
        """The name of a value as nodes read it that work on arrays: a number is cast to the key's element type."""
        if name in self._given:
            return self._cast_constant(name)
        is_weak = name in self.parts.numbers and self.parts.types[name].dtype is self.written
        if not is_weak or self.arrays.dtype is NUMBERS:
            return name
        if name not in self._casts:
            cast = self._casts[name] = self._names.fresh(f"{name}.cast")
            to = NUMBER_OF_DTYPE[self.arrays.dtype]
            self.of_numbers.append(Node("Cast", cast, (name,), (cast,), {"to": to}))
        return self._casts[name]

    def _cast_constant(self, name: str) -> str:
        if self._given[name].dtype != self.written.numpy:
            self.constants[name] = Constant(name, self._given[name])
            return name
        if name not in self._casts:
            cast = self._casts[name] = self._names.fresh(f"{name}.cast")
            self.constants[cast] = Constant(cast, self._as(self._given[name], self.arrays.dtype))
        return self._casts[name]

    def _as(self, array: np.ndarray, dtype: DType) -> np.ndarray:
        if array.dtype != self.written.numpy:
            return array  # bool, or an element type that the rule asks for by name
        with np.errstate(all="ignore"):
            made = array.astype(dtype.numpy)
        made.flags.writeable = False
        return made


def error_at(key: str, error: GraphError) -> GraphError:
    """The same error, which says for which key it is."""
    return type(error)(f"key {key!r}: {error.message}", pointer=error.pointer, node=error.node)
