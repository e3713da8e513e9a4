"""Type inference: the element type and shape of every value of a graph, before any data is there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from weft_graph.dimensions import Amount, Dim, DimensionError, as_dim, at_most, unknown_at
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError
from weft_graph.folding import MAX_DIMS, MAX_ELEMENTS, as_dims, as_numbers, fold, fold_dims, fold_type, nothing
from weft_graph.folding import TYPES as FOLDED
from weft_graph.ir import AttributeValue, Constant, Graph, Node, Subgraph
from weft_graph.limits import PROGRAM_LIMITS as LIMITS
from weft_graph.program import Program
from weft_graph.schema import Folding, OpSchema, formal_at, schema_of
from weft_graph.topological import topological_order
from weft_graph.types import TensorType, array_type
from weft_graph.weft_domain import is_communication

Array = np.ndarray[Any, np.dtype[Any]]


MOST_LOOKS: Final = 1 << 19
"""Nodes in bodies that one inference looks at: a loop's are looked at up to three times, those of a loop in it nine."""


MOST_FOLDS: Final = 1 << 13
"""Nodes whose values are computed from dimensions in one inference; those of more are known in a step alone."""


class Inference:
    """Types and known values, which grow node by node in an order that can be run."""

    def __init__(
        self, types: Mapping[str, TensorType], constants: Iterable[Constant] = (), within: Inference | None = None
    ) -> None:
        self.types: dict[str, TensorType] = dict(types)
        self.known: dict[str, Array] = {}
        self._looks: Iterator[int] = count() if within is None else within._looks
        """Numbers of nodes that were looked at in bodies, of this inference and of those around it."""
        self._folds: Iterator[int] = count() if within is None else within._folds
        """Numbers of nodes whose values were computed from dimensions, likewise."""
        self.dims: dict[str, Array] = {}
        """Lists of whole numbers some of which are dimensions that no step has filled yet."""
        self.most: dict[str, int] = {}
        """What dimensions that a step decides are at most, where that is known."""
        for constant in constants:
            self.add_constant(constant)

    def body(
        self, subgraph: Subgraph, types: Sequence[TensorType], pointer: str, known: Mapping[str, Array]
    ) -> tuple[TensorType, ...]:
        """Types of a body's outputs, whose inputs and captured values are of `types`; `known` are some of these."""
        reads = dict(zip((*subgraph.inputs, *subgraph.captured), types, strict=True))
        inner = Inference(reads, subgraph.constants, self)
        inner.known.update(known)
        for index, node in enumerate(subgraph.nodes):
            if next(self._looks) >= MOST_LOOKS:
                raise ShapeError(f"node {node.name!r}: bodies take more than {MOST_LOOKS} looks", node=node.name)
            inner.add(node, f"{pointer}/nodes/{index}" if pointer else "")
        return tuple(inner.types[name] for name in subgraph.outputs)

    def add_constant(self, constant: Constant) -> None:
        self.types[constant.name] = array_type(constant.array)
        self.known[constant.name] = constant.array

    def add(self, node: Node, pointer: str = "") -> tuple[TensorType, ...]:
        """Types of all outputs that the operator can give, also of those that the node leaves out.

        Raises ShapeError, DTypeError or UnknownOperatorError, which name the node and carry the pointer.
        """
        schema = schema_of(node)
        view = NodeView(node, schema, self, pointer)
        view.check_dtypes()
        try:
            types = schema.infer(view)
        except DimensionError as error:
            raise view.shape_error(str(error)) from None
        view.check_bounds(types)
        if len(types) < len(node.outputs):
            raise view.shape_error(f"it gives {len(types)} values, and the node names {len(node.outputs)}")
        for name, type_ in zip(node.outputs, types, strict=False):
            if name:
                self.types[name] = type_
        if schema.folding is not None and node.outputs and node.outputs[0]:
            self._fold(node, schema.folding, types[0])
        return types

    def _fold(self, node: Node, folding: Folding, type_: TensorType) -> None:
        """Only a node that reads nothing but known values is worth a look, and one that reads a shape."""
        first = self.types.get(node.inputs[0]) if node.inputs else None
        if all(name in self.known for name in node.inputs if name):
            value = fold(node, [self.known.get(name) for name in node.inputs if name], type_)
        else:
            value = None if first is None else fold_type(node, first)
        may_say = folding.of_type is not None or any(name in self.dims or name in self.known for name in node.inputs)
        if value is None and type_.dtype in FOLDED and may_say and next(self._folds) < MOST_FOLDS:
            dims = fold_dims(node, [self._elements(name) for name in node.inputs], first, type_)
            value = None if dims is None else as_numbers(dims, type_.dtype)
            if dims is not None and value is None:
                self.dims[node.outputs[0]] = dims
        if value is not None:
            self.known[node.outputs[0]] = value

    def dims_of(self, name: str) -> Array | None:
        """What is known of a list of whole numbers, as amounts, or None where nothing is."""
        if name in self.dims:
            return self.dims[name]
        known = self.known.get(name)
        return None if known is None or known.size > MAX_ELEMENTS else as_dims(known)

    def _elements(self, name: str) -> Array | None:
        """The same, an array of nothing where nothing is known of a value that could be computed with."""
        known = self.known.get(name)
        found = None if known is not None and known.size > MAX_DIMS else self.dims_of(name)
        return nothing(self.types[name]) if found is None and name in self.types else found


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a schema's `infer` sees of one node: the InferContext of `weft_graph.schema`."""

    node: Node
    schema: OpSchema
    inference: Inference
    pointer: str
    unknowns: Iterator[int] = field(default_factory=count)
    """Numbers of the dimensions that only a step's values decide at this node."""

    def input(self, index: int) -> TensorType:
        name = self.node.inputs[index]
        type_ = self.inference.types.get(name)
        if type_ is None:
            raise GraphRefusedError(
                f"node {self.node.name!r} ({self.node.op_type}) reads {name!r}, which nothing before it defines",
                pointer=f"{self.pointer}/inputs/{index}" if self.pointer else "",
                node=self.node.name,
            )
        return type_

    def optional_input(self, index: int) -> TensorType | None:
        is_given = index < len(self.node.inputs) and self.node.inputs[index] != ""
        return self.input(index) if is_given else None

    def constant(self, index: int) -> Array | None:
        return self.inference.known.get(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def dims(self, index: int) -> tuple[Dim, ...] | None:
        type_ = self.input(index)
        if type_.rank > 1:
            raise self.shape_error(f"input {index} must be a list of numbers, got {type_}")
        length = type_.shape[0] if type_.shape else 1
        if not isinstance(length, int) or length > LIMITS.rank:
            return None
        return tuple(self.unknown() if amount is None else as_dim(amount) for amount in self.amounts(index) or ())

    def amounts(self, index: int) -> tuple[Amount, ...] | None:
        found = self.inference.dims_of(self.node.inputs[index])
        if found is not None:
            return tuple(int(item) if isinstance(item, bool) else item for item in found.flat)
        type_ = self.input(index)
        return (None,) * type_.size if type_.is_static and type_.size <= MAX_ELEMENTS else None

    def unknown(self, most: Dim | None = None) -> Dim:
        name = unknown_at(self.node.name, next(self.unknowns))
        largest = None if most is None else at_most(most, self.inference.most)
        if isinstance(largest, int):
            self.inference.most[str(name)] = largest
        return name

    def body(self, subgraph: Subgraph, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        names = [name for name, value in self.node.attributes.items() if value is subgraph]
        pointer = f"{self.pointer}/attributes/{names[0]}" if self.pointer and names else ""
        outer = self.node.captured(subgraph)
        known = {
            inner: self.inference.known[name]
            for inner, name in zip(subgraph.captured, outer, strict=True)
            if name in self.inference.known
        }
        return self.inference.body(subgraph, types, pointer, known)

    def attribute(self, name: str) -> AttributeValue | None:
        return self.schema.attribute(self.node, name)

    def shape_error(self, message: str) -> ShapeError:
        return ShapeError(self._message(message), pointer=self.pointer, node=self.node.name)

    def dtype_error(self, message: str) -> DTypeError:
        return DTypeError(self._message(message), pointer=self.pointer, node=self.node.name)

    def check_dtypes(self) -> None:
        """Raises DTypeError at the first input whose element type the operator does not take."""
        for index, name in enumerate(self.node.inputs):
            formal = formal_at(self.schema.inputs, index)
            if not name or formal is None:
                continue
            dtype = self.input(index).dtype
            if dtype not in formal.dtypes:
                raise DTypeError(
                    self._message(f"input {formal.name!r} is {dtype}, and takes {', '.join(sorted(formal.dtypes))}"),
                    pointer=f"{self.pointer}/inputs/{index}" if self.pointer else "",
                    node=self.node.name,
                )

    def check_bounds(self, types: Iterable[TensorType]) -> None:
        """Raises ShapeError where a type passes the limits: a few hundred products would make numbers without end."""
        for type_ in types:
            names = [dim for dim in type_.shape if isinstance(dim, str)]
            numbers = [dim for dim in type_.shape if isinstance(dim, int)]
            if type_.rank > LIMITS.rank:
                raise self.shape_error(f"an output has {type_.rank} dimensions, and at most {LIMITS.rank} are allowed")
            if any(len(name) > LIMITS.name for name in names):
                raise self.shape_error(f"an output's dimension has a name of more than {LIMITS.name} characters")
            if math.prod(numbers) > LIMITS.elements or any(number > LIMITS.dim for number in numbers):
                raise self.shape_error(f"an output has more than {LIMITS.elements} elements")

    def _message(self, message: str) -> str:
        reads = ", ".join(
            f"{name} is {self.inference.types[name]}" for name in self.node.inputs if name in self.inference.types
        )
        return f"node {self.node.name!r} ({self.node.op_type}): {message} [{reads}]"


def body_types(subgraph: Subgraph, types: Sequence[TensorType], known: Mapping[str, Array]) -> tuple[TensorType, ...]:
    """Types of a body's outputs, whose inputs and captured values are of `types`; `known` are captured values.

    Raises ShapeError or DTypeError, naming the node.
    """
    small = {name: array for name, array in known.items() if array.size <= MAX_ELEMENTS}
    return Inference({}).body(subgraph, types, "", small)


def infer(graph: Graph, dims: Mapping[str, int] | None = None) -> Mapping[str, TensorType]:
    """The type of every value of a graph that has passed `check`.

    Dimensions stay symbolic where the inputs' are. `dims` fills them first: `{"batch": 32}` makes every type static in
    a graph whose inputs name no other dimension. Raises ShapeError or DTypeError, which name the node and carry its
    pointer, with the types of what it reads.
    """
    given = {input_.name: input_.type.bind(dims or {}) for input_ in graph.inputs}
    given.update((parameter.name, parameter.type) for parameter in graph.parameters)
    inference = Inference(given, graph.constants)
    places = {id(node): index for index, node in enumerate(graph.nodes)}
    for node in topological_order(graph.nodes):
        inference.add(node, f"/nodes/{places[id(node)]}")
    return MappingProxyType(inference.types)


def infer_program(program: Program, dims: Mapping[str, int]) -> Mapping[str, TensorType]:
    """The type of every value of a program with the named dimensions filled; what a worker binds kernels with.

    Raises ShapeError or DTypeError where the filled dimensions do not fit, naming the node.
    """
    return MappingProxyType(_of_program(program, dims).types)


def largest_types(program: Program, dims: Mapping[str, int]) -> Mapping[str, TensorType]:
    """The same, with each dimension that only a step decides as large as it can be, where that is known."""
    inference = _of_program(program, dims)
    return MappingProxyType(
        {
            name: TensorType(type_.dtype, tuple(at_most(dim, inference.most) for dim in type_.shape))
            for name, type_ in inference.types.items()
        }
    )


def _of_program(program: Program, dims: Mapping[str, int]) -> Inference:
    inference = Inference({input_.name: input_.type.bind(dims) for input_ in program.inputs}, program.constants)
    for node in program.nodes:
        if is_communication(node):
            inference.types.update((name, program.types[name].bind(dims)) for name in node.outputs)
        else:
            inference.add(node)
    return inference
