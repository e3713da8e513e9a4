"""The IR: a graph of nodes in ONNX's vocabulary, as frozen records.

A graph names every value with a string. A value is an input, a parameter, a constant or an output of exactly one
node. Nothing here checks anything: `weft_graph.check` says what a legal graph is, `weft_graph.infer` gives values
their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from weft_graph.types import TensorType

ONNX_DOMAIN = ""
WEFT_DOMAIN = "weft"
"""Operators that ONNX has no word for. All but one are the converter's alone: see `weft_graph.weft_domain`."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A value that is part of the graph: `array` is C-contiguous, little-endian and never written."""

    name: str
    array: np.ndarray


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The body of a control-flow operator: a branch of If, what Loop and Scan repeat.

    It reads `inputs`, in the operator's order, then `captured`, and nothing else from outside: the values around it
    that ONNX lets a body read by name are inputs of the node, its last ones, one for each of `captured`. So a pass that
    knows what a node reads knows it all. Its nodes are in runnable order; names of its values are its own, those of
    its nodes are unique in the whole graph.
    """

    inputs: tuple[str, ...]
    captured: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    constants: tuple[Constant, ...] = ()


AttributeValue = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Subgraph
"""What a node's attribute may hold; ONNX's tensor attributes become constants of the graph."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: `outputs = op_type(inputs, attributes)`.

    `name` is unique in its graph and is what errors, random numbers and plans call the node. An optional input
    that is left out is the empty string, as in ONNX. `group` names the part of the graph that the node is placed with;
    the empty string leaves the placement to the converter.
    """

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    domain: str = ONNX_DOMAIN
    group: str = ""

    def captured(self, body: Subgraph) -> tuple[str, ...]:
        """The node's inputs that its body captures, in the order of `body.captured`."""
        return self.inputs[len(self.inputs) - len(body.captured) :]

    def reading(self, names: Mapping[str, str]) -> Node:
        """The node, reading other values in the place of those that `names` has; itself where it has none of them."""
        inputs = tuple(names.get(name, name) for name in self.inputs)
        return self if inputs == self.inputs else replace(self, inputs=inputs)

    def renamed(self, names: Mapping[str, str]) -> Node:
        """The same, also of what the node makes."""
        outputs = tuple(names.get(name, name) for name in self.outputs)
        return replace(self.reading(names), outputs=outputs)


@dataclass(frozen=True, slots=True)
class Input:
    """A value that is fed at each step: a column of the data, or a number of the step."""

    name: str
    type: TensorType


GIVEN = "Given"
"""The initializer of a parameter whose first value comes beside the graph."""

UNREACHED = "no gradient reaches it"
"""Why an array of a file does not train that is read before operators without a gradient alone."""


@dataclass(frozen=True, slots=True)
class Initializer:
    """What makes a key's first value, element by element, in ONNX's words.

    `op_type` is one of `ConstantOfShape` (attribute `value`), `RandomUniform` (`low`, `high`) and `RandomNormal`
    (`mean`, `scale`). The numbers come from a counter-based generator keyed by (job seed, key, element). `Given` takes
    none: the value comes beside the graph and is set before the first step, by whoever the scheduler chose.
    """

    op_type: str
    attributes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that the store keeps: `type` has no symbolic dimension.

    A parameter that is not `trainable` has no gradient; BatchNormalization's running statistics are such, and are
    updated by the mean over the contributing slots. One that only Gather and Embedding read, by its first axis, is a
    table: it is fetched and pushed by rows, unless `row_sparse` is False.

    `lazy_update`: whether a rule passes by the rows of a table that a step does not touch. False: they get what a
    gradient of zeros would do to them, as in PyTorch's `nn.Embedding(sparse=False)`. It says nothing about parameters
    that are not tables.
    """

    name: str
    type: TensorType
    initializer: Initializer
    trainable: bool = True
    row_sparse: bool = True
    lazy_update: bool = True


@dataclass(frozen=True, slots=True)
class Graph:
    """What the user submits: forward operators in any order, the values they start from, the values asked for."""

    name: str
    inputs: tuple[Input, ...]
    parameters: tuple[Parameter, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    constants: tuple[Constant, ...] = ()
