"""weft as a backend of the `onnx` package: what its test suite, and anyone with a model, runs here and now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep, namedtupledict

from weft_graph.ir import Graph, Input
from weft_graph.onnx_form.imported import ReadOptions
from weft_graph.onnx_form.reader import read_model
from weft_graph.types import array_type
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True, eq=False)
class Prepared(BackendRep):
    """A model that runs. Inputs are given in the model's order."""

    graph: Graph

    def run(self, inputs: Sequence[Array], **_kwargs: Any) -> tuple[Any, ...]:
        """The model's outputs in its order. Raises GraphError, FeedError or KernelError."""
        arrays = {declared.name: np.asarray(array) for declared, array in zip(self.graph.inputs, inputs, strict=True)}
        outputs = evaluate(bound_to(self.graph, arrays), arrays)
        names = self.graph.outputs
        return namedtupledict("Outputs", names)(*(outputs[name] for name in names))


class Backend(OnnxBackend):
    """Runs models on the CPU, by weft's own kernels alone."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_kwargs: Any) -> Prepared:
        """Reads the model. Raises OnnxError and the graph's errors for what weft cannot run."""
        imported = read_model(model, ReadOptions(constants=("*",), training=False))
        return Prepared(imported.graph)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def bound_to(graph: Graph, arrays: Mapping[str, Array]) -> Graph:
    """The graph with inputs of the arrays' own shapes: a model's file may leave them open, or say none at all."""
    inputs = tuple(Input(declared.name, array_type(arrays[declared.name])) for declared in graph.inputs)
    return Graph(graph.name, inputs, graph.parameters, graph.nodes, graph.outputs, graph.constants)
