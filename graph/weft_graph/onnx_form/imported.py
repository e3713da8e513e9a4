"""What the reader makes of an ONNX model, and what it was told to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.ir import Graph

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a model is read.

    Which initializers train: those of float type with at least one dimension become parameters, all others constants.
    `parameters` and `constants` are glob patterns over initializers' names that override it, the latter first.
    `training`: BatchNormalization and Dropout are switched to training, but for the nodes (glob patterns) `frozen`.
    """

    parameters: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    training: bool = True
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A model as weft's graph. `values` has the first value of each parameter, in the parameter's type.

    `warnings` are sentences for people, each naming a node or an initializer.
    """

    graph: Graph
    values: Mapping[str, Array]
    warnings: tuple[str, ...] = ()
