"""Writes an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from weft_graph.infer import Inference
from weft_graph.ir import Constant, Graph, Subgraph
from weft_graph.json_form import OPSET
from weft_graph.names import FreshNames, value_definitions
from weft_graph.onnx_form.errors import Array, OnnxError
from weft_graph.onnx_form.initializers import Role
from weft_graph.onnx_form.own_metadata import LAZY, ROLE, ROW_SPARSE, WAS
from weft_graph.onnx_form.write_nodes import NodeWriter, empty_tensor, raw_bytes, tensor_proto, value_info
from weft_graph.passes.inference_mode import to_inference
from weft_graph.topological import topological_order
from weft_graph.types import TensorType, array_text

# --- Types of all values of a graph, those inside its bodies too, which runtimes want to be told ----------------------


@dataclass(frozen=True, slots=True)
class Known:
    """Types of the graph's values by name, and of each body's values, by the identity of the body."""

    types: Mapping[str, TensorType]
    bodies: Mapping[int, Mapping[str, TensorType]]


def infer_with_bodies(graph: Graph) -> Known:
    """Of a graph that has passed `check`. Raises ShapeError or DTypeError."""
    given = {input_.name: input_.type for input_ in graph.inputs}
    given.update((parameter.name, parameter.type) for parameter in graph.parameters)
    bodies: dict[int, Mapping[str, TensorType]] = {}
    inference = _Remembering(given, graph.constants, bodies)
    for node in topological_order(graph.nodes):
        inference.add(node)
    return Known(inference.types, bodies)


class _Remembering(Inference):
    """Keeps what it finds out about bodies. Of one that is looked at again, as a loop's is, the last time counts."""

    def __init__(
        self,
        types: Mapping[str, TensorType],
        constants: Iterable[Constant],
        bodies: dict[int, Mapping[str, TensorType]],
    ) -> None:
        super().__init__(types, constants)
        self._bodies = bodies

    def body(
        self, subgraph: Subgraph, types: Sequence[TensorType], pointer: str, known: Mapping[str, Array]
    ) -> tuple[TensorType, ...]:
        names = (*subgraph.inputs, *subgraph.captured)
        inner = _Remembering(dict(zip(names, types, strict=True)), subgraph.constants, self._bodies)
        inner.known.update(known)
        for index, node in enumerate(subgraph.nodes):
            inner.add(node, f"{pointer}/nodes/{index}" if pointer else "")
        self._bodies[id(subgraph)] = inner.types
        return tuple(inner.types[name] for name in subgraph.outputs)


DEFAULT_OPSET: Final = 21
"""What most runtimes of today take; a graph with newer operators is written for the first opset that has them all."""

FIRST_OPSET: Final = 13
PRODUCER: Final = "weft"

_MOST_INLINE_BYTES: Final = (1 << 31) - (1 << 24)
"""What a document of protobuf holds, less room for the nodes."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a graph is written.

    `opset`: the version, or 0 for the first from `DEFAULT_OPSET` on that can say it all. `training`: whether
    BatchNormalization and Dropout stay in training mode; else the model is what evaluation runs.
    """

    opset: int = 0
    training: bool = False


def write_model(graph: Graph, values: Mapping[str, Array], options: WriteOptions | None = None) -> onnx.ModelProto:
    """The model; `values` has an array for each parameter.

    Raises OnnxError, which names the node or parameter, where the opset cannot say it, where a value is missing or does
    not fit, or where a single file cannot hold it (`write_file` writes such a model).
    """
    model, arrays = written(graph, values, options or WriteOptions())
    total = sum(array.nbytes for array in arrays.values())
    if total > _MOST_INLINE_BYTES:
        raise OnnxError(f"the model's values take {total} bytes, which one message cannot hold: write it to a file")
    for tensor in model.graph.initializer:
        tensor.MergeFrom(tensor_proto(tensor.name, arrays[tensor.name]))
    return model


def written(
    graph: Graph, values: Mapping[str, Array], options: WriteOptions
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with initializers that have names and roles alone, and their arrays."""
    if options.opset and not FIRST_OPSET <= options.opset <= OPSET:
        raise OnnxError(f"opset {options.opset}: models are written for opsets {FIRST_OPSET} to {OPSET}")
    _check_values(graph, values)
    shown = graph if options.training else _as_evaluated(graph)
    known = infer_with_bodies(shown)
    opsets = [options.opset] if options.opset else range(DEFAULT_OPSET, OPSET + 1)
    for opset in opsets:
        try:
            model, arrays = _of_opset(shown, values, known, opset)
        except OnnxError:
            if opset == opsets[-1]:
                raise
        else:
            _mark_served(model.graph, graph)
            return model, arrays
    raise AssertionError("there is always an opset to try")


def _mark_served(proto: onnx.GraphProto, graph: Graph) -> None:
    """Says which of the nodes stand for a Dropout of the graph."""
    trained = {node.name for node in graph.nodes if node.op_type == "Dropout"}
    for node in proto.node:
        if node.op_type == "Identity" and node.name in trained:
            node.metadata_props.add(key=WAS, value="Dropout")


def _as_evaluated(graph: Graph) -> Graph:
    """The graph in inference, less the constants that only training reads: a Dropout's ratio."""
    shown = to_inference(graph)
    trained, read = ({name for node in nodes for name in node.inputs} for nodes in (graph.nodes, shown.nodes))
    idle = trained - read - set(graph.outputs)
    return replace(shown, constants=tuple(constant for constant in shown.constants if constant.name not in idle))


def _of_opset(
    graph: Graph, values: Mapping[str, Array], known: Known, opset: int
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    taken = [definition.name for definition in value_definitions(graph)]
    types = known.types
    writer = NodeWriter(opset, FreshNames(taken), types, known.bodies)
    proto = onnx.GraphProto(name=graph.name)
    for node in topological_order(graph.nodes):
        proto.node.extend(writer.protos(node, {}))
    proto.input.extend(value_info(input_.name, input_.type) for input_ in graph.inputs)
    proto.output.extend(value_info(name, types[name]) for name in graph.outputs)
    arrays: dict[str, Array] = {}
    for parameter in graph.parameters:
        arrays[parameter.name] = values[parameter.name]
        tensor = proto.initializer.add(name=parameter.name)
        role = Role.PARAMETER if parameter.trainable else Role.UNTRAINED
        tensor.metadata_props.add(key=ROLE, value=role.name.lower())
        if not parameter.row_sparse:
            tensor.metadata_props.add(key=ROW_SPARSE, value="false")
        if not parameter.lazy_update:
            tensor.metadata_props.add(key=LAZY, value="false")
    for constant in (*graph.constants, *writer.constants):
        arrays[constant.name] = constant.array
        proto.initializer.add(name=constant.name).metadata_props.add(key=ROLE, value=Role.CONSTANT.name.lower())
    domains = sorted(domain for domain in writer.domains if domain)
    imports = [onnx.helper.make_opsetid("", opset), *(onnx.helper.make_opsetid(domain, 1) for domain in domains)]
    model = onnx.ModelProto(ir_version=_ir_version(opset), producer_name=PRODUCER, graph=proto, opset_import=imports)
    return model, arrays


def _ir_version(opset: int) -> int:
    """The oldest version of the file format that may say this opset, and metadata of nodes, which came with 10."""
    return max(10, onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))


def _check_values(graph: Graph, values: Mapping[str, Array]) -> None:
    for parameter in graph.parameters:
        if parameter.name not in values:
            raise OnnxError(f"parameter {parameter.name!r} has no value", node=parameter.name)
        array = np.asarray(values[parameter.name])
        if array.dtype != parameter.type.dtype.numpy or array.shape != parameter.type.static_shape:
            raise OnnxError(
                f"parameter {parameter.name!r} is {parameter.type}, and its value {array_text(array)}",
                node=parameter.name,
            )


# --- Models written to files, with large values in a file of their own ------------------------------------------------


EXTERNAL_FROM_BYTES: Final = 3 << 29
"""1.5 GiB: from here on values go to a file beside the model; 2 GiB are protobuf's end."""

_SMALL_BYTES: Final = 1 << 10
"""Values up to here stay in the model: shapes and scalars, which readers look at."""

_ALIGNMENT: Final = 4096
"""Values begin at pages of memory, so that readers may map them."""


def write_file(
    path: Path | str,
    graph: Graph,
    values: Mapping[str, Array],
    options: WriteOptions | None = None,
    *,
    external_from: int = EXTERNAL_FROM_BYTES,
) -> None:
    """Writes the model to `path`, and from `external_from` bytes of values on these to `path` + `.data`.

    Files that are there are replaced once all is written. Raises OnnxError as `write_model`, and OSError,
    which names `path`.
    """
    path = Path(path)
    model, arrays = written(graph, values, options or WriteOptions())
    is_external = sum(array.nbytes for array in arrays.values()) >= external_from
    data = path.with_name(f"{path.name}.data")
    partial, partial_data = (place.with_name(f"{place.name}.partial") for place in (path, data))
    try:
        if is_external:
            _write_data(model, arrays, partial_data, data.name)
        else:
            for tensor in model.graph.initializer:
                tensor.MergeFrom(tensor_proto(tensor.name, arrays[tensor.name]))
        partial.write_bytes(model.SerializeToString())
        if is_external:
            os.replace(partial_data, data)
        os.replace(partial, path)
    except OSError as error:  # The caller wrote neither name.
        named = path if error.filename in {os.fspath(partial), os.fspath(partial_data)} else error.filename
        raise OSError(error.errno, error.strerror, named and os.fspath(named)) from None
    finally:
        for leftover in (partial, partial_data):
            with suppress(FileNotFoundError):
                leftover.unlink()


def _write_data(model: onnx.ModelProto, arrays: Mapping[str, Array], path: Path, location: str) -> None:
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            array = arrays[tensor.name]
            if array.nbytes <= _SMALL_BYTES:
                tensor.MergeFrom(tensor_proto(tensor.name, array))
                continue
            tensor.MergeFrom(empty_tensor(tensor.name, array))
            tensor.data_location = onnx.TensorProto.EXTERNAL
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            raw = raw_bytes(array)
            for key, value in (("location", location), ("offset", file.tell()), ("length", len(raw))):
                tensor.external_data.add(key=key, value=str(value))
            file.write(raw)
