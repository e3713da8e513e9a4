"""What an expression is made of: frozen records that point at the values they are computed from.

Records are compared by identity: two equal calls of an operator are two nodes. They carry wishes for names; the names
themselves are given when a graph is collected (`weft.collect`), so that building one graph leaves no trace in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.ir import AttributeValue, Initializer
from weft_graph.schema import OpSchema
from weft_graph.types import DType, Shape, TensorType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A layer's place in the naming: `name` below `parent`.

    A name that was not given by the user (`given` is False) gets a number where it is taken. An empty name stands for
    nothing in front, and becomes `fallback` where another scope has that already.
    """

    name: str
    parent: Scope | None = None
    given: bool = False
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A wish for a name: `local` within `scope`. Where `given`, the user asked for it and must get it."""

    local: str
    scope: Scope | None = None
    given: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class InputRecord:
    """A value that is fed at each step."""

    label: Label
    types: tuple[TensorType]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterRecord:
    """A value that the store keeps."""

    label: Label
    types: tuple[TensorType]
    initializer: Initializer
    trainable: bool = True
    row_sparse: bool = True
    lazy_update: bool = True
    value: Array | None = None
    """The first value, where it comes beside the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstantRecord:
    """A value that is part of the graph. Without a label it is named after the first node that reads it."""

    label: Label | None
    types: tuple[TensorType]
    array: Array


@dataclass(frozen=True, slots=True)
class NodeNames:
    """What a node of a graph that was read is called there: all of it stays. A value that is left out is ''."""

    node: str
    values: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Application:
    """An operator applied to values; None stands for an optional input that is left out.

    `types` has an entry for each output that was asked for. `known` is output 0 where it is known before any step: a
    shape, say. `names` are those of a graph that was read, which then are the record's, whatever its label wishes.
    """

    label: Label
    schema: OpSchema
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, AttributeValue]
    types: tuple[TensorType, ...]
    known: Array | None = None
    names: NodeNames | None = None


Record = InputRecord | ParameterRecord | ConstantRecord | Application


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Value:
    """Output `index` of `record`. `weft.expression.Expression` is what users have of it."""

    record: Record
    index: int = 0

    @property
    def type(self) -> TensorType:
        """Element type and shape; a dimension is a number or a symbol such as `batch`."""
        return self.record.types[self.index]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def known(self) -> Array | None:
        """The value where it is known before any step: a constant, or a shape worked out of constants."""
        if isinstance(self.record, ConstantRecord):
            return self.record.array
        return self.record.known if isinstance(self.record, Application) and self.index == 0 else None
