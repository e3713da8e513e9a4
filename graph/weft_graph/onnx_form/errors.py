"""What is wrong with a file, what a reader says of it, and how much it may hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import numpy as np
import onnx

from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Graph
from weft_graph.limits import GRAPH_LIMITS, Limits
from weft_graph.names import RESERVED_PREFIX
from weft_graph.types import Shape


class OnnxError(GraphRefusedError):
    """The file is no model, or holds what weft's graphs cannot; the message names the node, value or field."""


class UnsettledError(OnnxError):
    """A sequence's length or place, or whether it is there, is not known before a step: values of inputs may tell."""


# --- Text of an ONNX file: what a name may be, and what a message shows of one that is none ---------------------------


_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def text(value: object, what: str) -> str:
    """The value as text. Raises OnnxError where the file has bytes that are no UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise OnnxError(f"{what} is no UTF-8: {error.reason} at byte {error.start}") from None
    raise OnnxError(f"{what} is a Python {type(value).__name__}, and must be text")


def legal(name: str, most: int) -> str:
    """A name that graphs may have: without control characters, of at most `most` characters, no converter's."""
    printable = _UNPRINTABLE.sub("_", name)
    if printable.startswith(RESERVED_PREFIX):
        printable = f"_{printable}"
    if len(printable) > most:
        printable = f"{printable[: most - 17]}.{sha256(printable.encode()).hexdigest()[:16]}"
    return printable


def trimmed(names: Iterable[str]) -> list[str]:
    """Values of a node without those left out at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


# --- What the reader makes of an ONNX model, and what it was told to do -----------------------------------------------


Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a model is read.

    Which initializers train: those of float type, with at least one dimension and one element, that lead to an output
    through floats, are no mask, and are read not only as a setting (`Formal.setting`: Resize's scales, Clip's bounds,
    rotary caches, attention's mask) become parameters, all others constants. Where PyTorch's exporter says of an
    initializer that it is a parameter or a buffer, that decides: a parameter may be a single number, a buffer is a
    constant. BatchNormalization's mean and variance become parameters that do not train, in which running statistics
    are kept.
    """

    parameters: tuple[str, ...] = ()
    """Glob patterns of initializers that train, whatever else is said of them."""
    constants: tuple[str, ...] = ()
    """Glob patterns of initializers that are part of the graph; they go before all other patterns."""
    untrained: tuple[str, ...] = ()
    """Glob patterns of initializers that the store keeps and no rule changes: for what is too large for a constant.
    They go before `parameters`."""
    training: bool = True
    """Whether BatchNormalization and Dropout are switched to training, and the model's own optimizer becomes a rule;
    without, they stay as the file has them."""
    frozen: tuple[str, ...] = ()
    """Glob patterns of parameters that do not train, and of BatchNormalization and Dropout nodes that are switched to
    inference instead. One that matches no name is told in the warnings."""
    lazy: tuple[str, ...] = ()
    """Glob patterns of tables whose rows stay as they are at steps that do not read them, beside those that the file
    itself says are so. Others get what a gradient of zeros does to them, as PyTorch's `nn.Embedding(sparse=False)`."""
    verify: bool = True
    """Whether a file is refused that is known to train otherwise than the PyTorch module that it was written from."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes of inputs by name, in the place of the file's. A dimension is a number or a word."""
    sequences: Mapping[str, int | None] = field(default_factory=dict)
    """Lengths of inputs that are sequences: each becomes as many inputs, `name.0` and so on. An input that is optional
    has None where it is not there, and any number where it is a tensor."""
    values: Mapping[str, Array] = field(default_factory=dict)
    """Inputs whose values are known beforehand: they become constants, and what follows from them is settled."""
    batch: str = ""
    """The symbolic dimension that is called `batch`; where it is empty, the one that most inputs begin with."""
    limits: Limits = GRAPH_LIMITS
    """Upper bounds of the graph. Parameters' values count to none."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """How a model's file says that it is trained: the output that is made small, one of weft's built-in rules and its
    hyper-parameters, without `lr` where the model is fed it at each step."""

    loss: str
    rule: str
    hyper: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A model as weft's graph. `values` has the first value of each parameter, in the parameter's type.

    `warnings` are sentences for people, each naming a node or an initializer. `sequences` has, for each output of the
    model that is a sequence, the graph's outputs that are its items. `step` is what the model's own optimizer was,
    which is no longer in the graph.
    """

    graph: Graph
    values: Mapping[str, Array]
    warnings: tuple[str, ...] = ()
    sequences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    step: TrainingStep | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why an initializer is what it is, in a few words: of what does not train, and of what modules share."""


# --- What reading a model may cost: nodes and values, counted as they are read, also those that functions bring -------


MOST_CALLS: Final = 32
"""Functions inside functions."""

MOST_ITEMS: Final = 1 << 22
"""Of all sequences that nodes give: one that is a longer one's start is counted again."""


@dataclass(slots=True)
class Budget:
    """Counts against the limits. A function that is called a thousand times counts a thousand times."""

    limits: Limits
    nodes: int = 0
    values: int = 0
    added: int = 0
    """Nodes that are none of the file's own: what a node of the file is written out as."""
    added_values: int = 0
    items: int = 0

    def take(self, proto: onnx.NodeProto, name: str) -> None:
        """Counts one node. Raises OnnxError, naming the node, at the first that is one too many."""
        limits = self.limits
        self.nodes += 1
        self.values += len(proto.input) + len(proto.output)
        if self.nodes > limits.nodes:
            raise OnnxError(f"node {name!r} is one more than the {limits.nodes} nodes that are allowed", node=name)
        if self.values > limits.values:
            raise OnnxError(
                f"the nodes up to {name!r} have {self.values} inputs and outputs; at most {limits.values}", node=name
            )
        if max(len(proto.input), len(proto.output)) > limits.node_values:
            raise OnnxError(f"node {name!r} has more than {limits.node_values} inputs or outputs", node=name)
        if len(proto.attribute) > limits.attributes:
            raise OnnxError(f"node {name!r} has more than {limits.attributes} attributes", node=name)

    def add(self, values: int, name: str) -> None:
        """Counts a node that `name`, a node of the file, is written out as, or a body of it.

        Raises OnnxError at the first that is one too many.
        """
        limits = self.limits
        self.added += 1
        self.added_values += values
        if self.added > limits.nodes or self.added_values > limits.values:
            raise OnnxError(
                f"node {name!r} and those before it are written out as more than {limits.nodes} nodes, or as nodes of "
                f"more than {limits.values} inputs and outputs",
                node=name,
            )

    def hold(self, items: int, name: str) -> None:
        """Counts the items of a sequence that a node gives. Raises OnnxError, naming the node, where they are too many.

        The sequences of one model are all held until it is read."""
        self.items += items
        if self.items > MOST_ITEMS:
            raise OnnxError(
                f"the sequences up to node {name!r} have {self.items} items together; at most {MOST_ITEMS}", node=name
            )
