"""weft as a backend of the `onnx` package: what its test suite, and anyone with a model, runs here and now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep, namedtupledict

from weft_graph.errors import GraphError
from weft_graph.ir import Graph
from weft_graph.limits import GRAPH_LIMITS
from weft_graph.onnx_form.errors import Imported, ReadOptions, UnsettledError
from weft_graph.onnx_form.reader import read_model
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import Array

_OPTIONS = ReadOptions(constants=("*",), training=False, limits=replace(GRAPH_LIMITS, constant_bytes=1 << 32))
"""A model runs as its file has it: all initializers are constants, and nothing is switched to training."""

_MOST_PLACES = 64
"""Elements of an input of whole numbers that is read as places or counts where the model asks for them."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared(BackendRep):
    """A model that runs. It is read anew for inputs of other shapes, since its file may leave shapes open."""

    model: onnx.ModelProto
    _read: dict[tuple[tuple[str, object], ...], Imported] = field(default_factory=dict)

    def run(self, inputs: Sequence[Any], **_kwargs: Any) -> tuple[Any, ...]:
        """The model's outputs in its order, from inputs in its order: a sequence is a list of arrays, what is optional
        may be None. Raises GraphError, FeedError or KernelError.
        """
        imported, arrays = self._read_for(inputs)
        outputs = self._computed(imported.graph, arrays)
        names = [output.name for output in self.model.graph.output]
        return namedtupledict("Outputs", names)(*(self._output(name, imported, outputs) for name in names))

    def _computed(self, graph: Graph, arrays: dict[str, Array]) -> Mapping[str, Array]:
        """The graph's outputs by name. Who runs graphs in another way overrides this alone."""
        return evaluate(graph, arrays)

    def _read_for(self, inputs: Sequence[Any]) -> tuple[Imported, dict[str, Array]]:
        """The model for inputs of these shapes; for these very values too where sequences depend on them.

        Raises GraphError: the one about the model as it is where the values do not help.
        """
        try:
            return self._bound(inputs)
        except UnsettledError as error:
            try:
                return self._settled(inputs)
            except GraphError as second:
                raise error from second

    def _bound(self, inputs: Sequence[Any]) -> tuple[Imported, dict[str, Array]]:
        """The model read for inputs of these shapes, and the arrays that feed its graph's inputs."""
        arrays, counts = self._fed(inputs)
        key = (*((name, array.shape) for name, array in arrays.items()), *counts.items())
        if key not in self._read:
            shapes = {name: array.shape for name, array in arrays.items()}
            self._read[key] = read_model(self.model, replace(_OPTIONS, shapes=shapes, sequences=counts))
        return self._read[key], arrays

    def _settled(self, inputs: Sequence[Any]) -> tuple[Imported, dict[str, Array]]:
        """The model read for these very places, counts and conditions: what depends on them is settled so."""
        arrays, counts = self._fed(inputs)
        declared = {value.name for value in self.model.graph.input if value.type.HasField("tensor_type")}
        small = {
            name: array
            for name, array in arrays.items()
            if name in declared and array.dtype.kind in "iub" and array.size <= _MOST_PLACES
        }
        left = {name: array for name, array in arrays.items() if name not in small}
        shapes = {name: array.shape for name, array in left.items()}
        return read_model(self.model, replace(_OPTIONS, shapes=shapes, sequences=counts, values=small)), left

    def _fed(self, inputs: Sequence[Any]) -> tuple[dict[str, Array], dict[str, int | None]]:
        """Arrays by the names of the graph's inputs, and lengths of inputs that are no tensors."""
        held = {tensor.name for tensor in self.model.graph.initializer}
        fed = [value for value in self.model.graph.input if value.name not in held]
        arrays: dict[str, Array] = {}
        counts: dict[str, int | None] = {}
        for value, given in zip(fed, inputs, strict=False):
            if value.type.HasField("tensor_type") or isinstance(given, np.ndarray):
                arrays[value.name] = np.asarray(given)
            if not value.type.HasField("tensor_type"):
                counts[value.name] = len(given) if isinstance(given, list | tuple) else None if given is None else 1
                if isinstance(given, list | tuple):
                    arrays.update((f"{value.name}.{place}", np.asarray(item)) for place, item in enumerate(given))
        return arrays, counts

    def _output(self, name: str, imported: Imported, outputs: Mapping[str, Array]) -> Any:
        if name not in imported.sequences:
            return outputs[name]
        items = [outputs[item] for item in imported.sequences[name]]
        type_ = next(output.type for output in self.model.graph.output if output.name == name)
        is_one = type_.HasField("optional_type") and type_.optional_type.elem_type.HasField("tensor_type")
        return (items[0] if items else None) if is_one else items


class Backend(OnnxBackend):
    """Runs models on the CPU, by weft's own kernels alone."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_kwargs: Any) -> Prepared:
        """Takes the model; what weft cannot run is refused once the shapes of its inputs are known, by `run`.

        Raises ValueError for another device.
        """
        if not cls.supports_device(device):
            raise ValueError(f"device {device!r}: this backend runs on the CPU")
        return Prepared(model)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node of the newest opset, or of that which `opset_version` says."""
        arrays = [np.asarray(array) for array in inputs]
        names = [name for name in dict.fromkeys(node.input) if name]
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            [_info(name, array) for name, array in zip(names, arrays, strict=True)],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        opsets = [onnx.helper.make_opsetid(node.domain, version if node.domain in {"", "ai.onnx"} else 1)]
        return cls.prepare(onnx.helper.make_model(graph, opset_imports=opsets), device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
