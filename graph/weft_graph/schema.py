"""What an operator is to the graph: its inputs, attributes, type inference and gradient.

Each operator is one module of `weft_graph.operators` with a constant `SCHEMA`, and one of the same name in
`weft_kernels.operators` with the bodies. Both are found by walking the package: there is no list to edit.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Protocol

import numpy as np

from weft_graph.errors import DTypeError, ShapeError, UnknownOperatorError
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Node, Subgraph
from weft_graph.types import DType, Shape, TensorType


class InferContext(Protocol):
    """What a schema's `infer` sees of one node."""

    @property
    def node(self) -> Node: ...

    def input(self, index: int) -> TensorType:
        """Type of input `index`; the checker has made sure that it is there."""

    def optional_input(self, index: int) -> TensorType | None:
        """Type of input `index`, or None where the node leaves it out."""

    def constant(self, index: int) -> np.ndarray | None:
        """The value of input `index` where it is known before any step (a shape, axes), else None."""

    def dims(self, index: int) -> Shape | None:
        """Input `index`, a list of whole numbers or one of them, as dimensions: numbers where they are known, names
        of the inputs' dimensions where it was made of those, and new names where only the values of a step decide.
        None where not even their count is known."""

    def amounts(self, index: int) -> tuple[int | str | None, ...] | None:
        """What is known of the elements of input `index`, whole numbers, in order: see `weft_graph.dimensions`.
        None where not even their count is known."""

    def unknown(self, most: int | str | None = None) -> int | str:
        """A new name for a dimension that only the values of a step decide, and that is `most` at most."""

    def body(self, subgraph: Subgraph, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of a body's outputs; `types` are those of what it reads: its inputs, then what it captures."""

    def attribute(self, name: str) -> AttributeValue | None:
        """The node's attribute, else the schema's default."""

    def shape_error(self, message: str) -> ShapeError:
        """An error that names the node; raise it."""

    def dtype_error(self, message: str) -> DTypeError:
        """An error that names the node; raise it."""


class GradientContext(Protocol):
    """What a schema's `gradient` sees of one node, and how it writes the backward nodes."""

    @property
    def node(self) -> Node: ...

    def input(self, index: int) -> str:
        """Name of the value that is input `index` ('' where left out)."""

    def output(self, index: int) -> str:
        """Name of the value that is output `index`. A gradient may ask for an optional output that the node does
        not name yet (Dropout's mask): it gets one, and the forward node is rewritten to name it."""

    def gradient(self, index: int) -> str | None:
        """Name of the gradient of output `index`, or None where nothing flows into it."""

    def needs(self, index: int) -> bool:
        """Whether input `index` leads to a trainable parameter; a gradient that is not needed may be left out."""

    def type_of(self, value: str) -> TensorType: ...

    def attribute(self, name: str) -> AttributeValue | None: ...

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        domain: str = ONNX_DOMAIN,
        outputs: int = 1,
    ) -> tuple[str, ...]:
        """Append a backward node and return its outputs' names; their types are inferred at once."""

    def constant(self, array: np.ndarray) -> str:
        """Name of a constant with this value (axes, shapes, scalars)."""

    def known(self, value: str) -> np.ndarray | None:
        """The value where it is known before any step, else None."""

    def zeros(self, like: str) -> str:
        """Name of a value of zeros, of the type of the value `like`."""

    def output_type(self, index: int) -> TensorType:
        """Type of output `index`, also of one that the node leaves out."""

    def extend(self, attributes: Mapping[str, AttributeValue], outputs: int) -> tuple[str, ...]:
        """Names of that many further outputs, which the forward node gives, behind all others, with these attributes
        in the place of its own: what a loop keeps of each turn."""

    def derive(
        self,
        attribute: str,
        types: Sequence[TensorType],
        seeds: Sequence[int],
        carried: Mapping[int, str],
        *,
        sources: Sequence[str] | None = None,
        may_not_run: bool = False,
    ) -> BodyDerivation:
        """The derivative of a body of the node. `types` are those of what it reads, its inputs and then its captured
        values, which are the node's last inputs; `seeds` are its outputs with a gradient from outside, and `carried`
        has for an output the input that gets it at the next turn. Where what a body reads is not an input of the node,
        `sources` has for each of these the value that it is made of, or that stands for several. A body that
        `may_not_run` keeps the seed of a carried output whose input takes part: after no turn it is that input.

        Raises NoGradientError where the gradient would have to pass an operator in the body that has none.
        """


class BodyDerivation(Protocol):
    """A body and its backward nodes, of which further bodies can be made. All names are the body's."""

    @property
    def seeds(self) -> Mapping[int, str]:
        """The name of the gradient of each output that has one: from outside, or from a later turn."""

    def gradient(self, value: str) -> str | None:
        """The gradient of one of the values that the body reads, or None where nothing flows into it."""

    def zeros(self, value: str) -> str:
        """Zeros of the type of a value of the body."""

    def reads(self, outputs: Sequence[str]) -> set[str]:
        """The values that have to be there for `outputs` to be computed, and these."""

    def closed(self, inputs: Sequence[str], captured: Sequence[str], outputs: Sequence[str]) -> Subgraph:
        """A body that gives `outputs`, with no node that is not needed for them."""


Flops = Callable[[Node, Sequence[TensorType | None], Sequence[TensorType]], int]
"""flops(node, types of its inputs, types of its outputs): operations on elements, all dimensions being numbers."""

Strides = tuple[int, ...]
"""For each dimension, how many elements lie between one element and the next along it."""

ViewRule = Callable[[Node, Shape, Strides | None, Shape], Strides | None]
"""rule(node, input 0's shape and strides, the output's shape): the output's strides within the input's memory, None
where they are not known before the step. `weft_graph.layout.strides.NO_VIEW` says that it is no view at all."""


class MemoryOrder(StrEnum):
    """How an operator's outputs lie in memory, without gaps."""

    ROWS = "rows"
    """The last dimension's elements are neighbours, as C and NumPy have it."""
    INPUT = "input"
    """As the first input of the output's shape."""
    CHANNELS = "channels"
    """Dimension 1 leads, then 0, 2, ...: as a convolution's one matrix product makes them."""


Known = np.ndarray[Any, np.dtype[Any]]
"""What is known of a value before any step: its elements; or, of whole numbers and truth values, an array of objects,
each an amount (see `weft_graph.dimensions`), a truth value, or None where nothing is known of an element."""


@dataclass(frozen=True, slots=True)
class Folding:
    """What an operator says of its output 0 before any step; None: nothing. `weft_graph.folding` makes and asks these.

    `values(node, its inputs, output 0's type)` computes it from inputs that are known whole, by operations that every
    device rounds alike. `amounts` does the same with arrays of objects, or None, for inputs of which something is
    known. `of_type(node, input 0's type)` has its amounts where the type is enough.
    """

    values: Callable[[Node, Sequence[Known], TensorType], Known | None] | None = None
    amounts: Callable[[Node, Sequence[Known | None], TensorType], Known | None] | None = None
    of_type: Callable[[Node, TensorType], Known] | None = None


Infer = Callable[[InferContext], tuple[TensorType, ...]]
Gradient = Callable[[GradientContext], tuple[str | None, ...]]


class Setting(StrEnum):
    """How an input of floats says what the operator does, so that a number in a model's file is none to train there."""

    FIXED = "fixed"
    """Nothing trains that leads to it: a window, a ratio, a scale of Resize."""
    GIVEN = "given"
    """An array of the file does not train, one that is computed may: a mask of learned biases, a grid."""


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal input or output: ONNX's name for it, the element types it takes, whether it may be left out.

    `variadic` is for the last formal alone: it stands for one or more, with `optional` for none or more.
    `setting` is for inputs of float type that are no data; the reader of models goes by it.
    """

    name: str
    dtypes: frozenset[DType]
    optional: bool = False
    variadic: bool = False
    setting: Setting | None = None


def formal_at(formals: Sequence[Formal], index: int) -> Formal | None:
    """The formal that stands for actual `index`, or None where the operator takes fewer."""
    if index < len(formals):
        return formals[index]
    return formals[-1] if formals and formals[-1].variadic else None


def name_at(formals: Sequence[Formal], index: int) -> str:
    """What ONNX calls actual `index`; those that a variadic formal stands for are numbered. Raises IndexError."""
    formal = formal_at(formals, index)
    if formal is None:
        raise IndexError(f"there are {len(formals)} formals, and none for {index}")
    return f"{formal.name}{index}" if formal.variadic else formal.name


@dataclass(frozen=True, slots=True)
class Attribute:
    """A formal attribute: the Python type of its value, and its default where it has one.

    `tuple` is a list of integers, unless `of` says what else its items are.
    """

    kind: type[int] | type[float] | type[str] | type[bool] | type[tuple] | type[Subgraph]  # type: ignore[type-arg]  # checked by element
    default: AttributeValue | None = None
    required: bool = False
    of: type[int] | type[float] | type[str] = int


@dataclass(frozen=True, slots=True)
class OpSchema:
    """One operator. `gradient` is None where it has none: integers, comparisons, and what has not been derived.

    `infer` returns the type of every output that the operator can give, also of optional ones a node leaves out.
    `gradient` returns, for each input of the node, the name of its gradient or None.

    `commutative`: its two inputs may change places, to the bit. `random`: two nodes that read the same give different
    outputs, since the node's name keys their draws.

    What a memory layout goes by: `views` says that outputs share the memory of input 0 where that is possible: True for
    one whose elements stay in their order, as Reshape's, else the rule of where they lie. `in_place` are the inputs
    whose memory output 0 may take when nobody reads them any more, every one of a pointwise operator unless said
    otherwise: the kernel writes an element only once it reads no other element of that input, nor that one again.
    `shape_only` are the inputs whose shape alone the kernel looks at: their memory need not be held for it.
    `order` is the order in memory in which the kernel makes its outputs; a pointwise one follows its inputs.

    `pointwise`: an element of an output is a function of the elements at its place in the broadcast inputs, and of
    nothing else, so that the operator may be run on any part of its arrays. `flops` counts the work of one that is not,
    see `weft_graph.cost`; only what is pointwise or counted may be in a user's update rule. `work` counts that of one
    that no rule may hold, since it takes memory of its own (Conv) or draws random numbers.

    What mixed precision goes by, see `weft_graph.passes.precision`: a `product` computes in the narrow type. One that
    `follows`, with all of its inputs or with these, moves elements or is cheap for each of them: it computes in what
    it reads. All others compute in float32.

    `folding`: what is known of output 0 before any step.
    """

    op_type: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    infer: Infer
    gradient: Gradient | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ONNX_DOMAIN
    pointwise: bool = False
    flops: Flops | None = None
    work: Flops | None = None
    views: bool | ViewRule = False
    in_place: Container[int] | None = None
    shape_only: Container[int] = ()
    order: MemoryOrder = MemoryOrder.ROWS
    commutative: bool = False
    random: bool = False
    product: bool = False
    follows: bool | tuple[int, ...] = False
    folding: Folding | None = None

    def attribute(self, node: Node, name: str) -> AttributeValue | None:
        """The node's attribute, else its default, else None."""
        if name in node.attributes:
            return node.attributes[name]
        formal = self.attributes.get(name)
        return None if formal is None else formal.default

    def attributes_of(self, node: Node) -> dict[str, AttributeValue]:
        """The node's attributes with the defaults filled in; one that has neither is left out."""
        values = {name: self.attribute(node, name) for name in (*self.attributes, *node.attributes)}
        return {name: value for name, value in values.items() if value is not None}


@cache
def schemas() -> Mapping[tuple[str, str], OpSchema]:
    """Every operator's schema by (domain, op_type): those that the modules of `weft_graph.operators` define."""
    package = importlib.import_module("weft_graph.operators")
    found: dict[tuple[str, str], OpSchema] = {}
    for info in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{info.name}")).values():
            if isinstance(value, OpSchema):
                found[value.domain, value.op_type] = value
    return found


def schema_of(node: Node) -> OpSchema:
    """The schema of the node's operator. Raises UnknownOperatorError, naming the node."""
    schema = schemas().get((node.domain, node.op_type))
    if schema is None:
        shown = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise UnknownOperatorError(f"node {node.name!r}: there is no operator {shown!r}", node=node.name)
    return schema
