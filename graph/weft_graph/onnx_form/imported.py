"""What the reader makes of an ONNX model, and what it was told to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft_graph.ir import Graph
from weft_graph.limits import GRAPH_LIMITS, Limits
from weft_graph.types import Shape

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
