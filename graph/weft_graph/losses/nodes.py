"""Nodes that are added to a graph, each typed as it is added."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from weft_graph.infer import Inference
from weft_graph.ir import AttributeValue, Constant, Graph, Input, Node
from weft_graph.names import FreshNames, node_definitions, value_definitions
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.topological import topological_order
from weft_graph.types import DType, TensorType

_LEAST_LOG: Final = -100.0


class LossNodes:
    """What a loss adds to a graph, under names that the graph has not. `types` has every value's type."""

    def __init__(self, graph: Graph) -> None:
        given = {input_.name: input_.type for input_ in graph.inputs}
        given.update((parameter.name, parameter.type) for parameter in graph.parameters)
        self._inference = Inference(given, graph.constants)
        for node in topological_order(graph.nodes):
            self._inference.add(node)
        self._values = FreshNames(definition.name for definition in value_definitions(graph))
        self._names = FreshNames(definition.name for definition in node_definitions(graph))
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []

    @property
    def types(self) -> dict[str, TensorType]:
        return self._inference.types

    def add(self, op_type: str, inputs: tuple[str, ...], stem: str, **attributes: AttributeValue) -> str:
        """The first output of a new node. Raises ShapeError, DTypeError."""
        output = self._values.fresh(stem)
        node = Node(op_type, self._names.fresh(output), inputs, (output,), attributes)
        self._inference.add(node)
        self.nodes.append(node)
        return output

    def mean(self, value: str, stem: str) -> str:
        """Over all elements, a scalar."""
        return self.add("ReduceMean", (value,), stem, keepdims=0)

    def total(self, value: str, stem: str) -> str:
        """The sum of all elements, a scalar."""
        return self.add("ReduceSum", (value,), stem, keepdims=0)

    def log_probability(self, value: str, stem: str) -> str:
        """The logarithm of probabilities, -100 of one that is 0, as in PyTorch's BCELoss. In float32 at least."""
        value = self.cast(value, widest((self.types[value].dtype, DType.FLOAT32)))
        dtype = self.types[value].dtype
        least = max(float(np.finfo(dtype.value).tiny), math.exp(_LEAST_LOG))  # no number below is divided by
        is_least = self.add("Less", (value, self.number(least, dtype)), f"{stem}/is_least")
        # What is replaced is replaced before its logarithm, whose gradient would be infinite there.
        positive = self.add("Where", (is_least, self.number(1.0, dtype), value), f"{stem}/positive")
        log = self.add("Log", (positive,), f"{stem}/log")
        return self.add("Where", (is_least, self.number(_LEAST_LOG, dtype), log), f"{stem}/log_probability")

    def cast(self, value: str, dtype: DType) -> str:
        """The value itself where it is of that type."""
        if self.types[value].dtype is dtype:
            return value
        return self.add("Cast", (value,), f"{value}/{dtype.value}", to=NUMBER_OF_DTYPE[dtype])

    def number(self, value: float, dtype: DType) -> str:
        """A scalar constant."""
        constant = Constant(self._values.fresh("loss/number"), np.asarray(value, dtype.numpy))
        self._inference.add_constant(constant)
        self.constants.append(constant)
        return constant.name

    def new_input(self, stem: str, type_: TensorType) -> Input:
        """An input under the name `stem`, or one like it."""
        made = Input(self._values.fresh(stem), type_)
        self._inference.types[made.name] = type_
        return made


def widest(dtypes: Iterable[DType]) -> DType:
    """The float type of most bits; float32 for float16 beside bfloat16."""
    given = set(dtypes)
    both = {DType.FLOAT16, DType.BFLOAT16}
    return DType.FLOAT32 if given == both else max(given, key=lambda dtype: (dtype.bits, dtype))
