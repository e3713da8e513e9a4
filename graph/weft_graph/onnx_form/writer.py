"""Writes one of weft's graphs as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnx

from weft_graph.ir import Graph
from weft_graph.json_form import OPSET
from weft_graph.names import FreshNames, value_definitions
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.imported import Array
from weft_graph.onnx_form.initializers import Role
from weft_graph.onnx_form.own_metadata import LAZY, ROLE, ROW_SPARSE, WAS
from weft_graph.onnx_form.write_nodes import NodeWriter, value_info
from weft_graph.onnx_form.write_tensors import tensor_proto
from weft_graph.onnx_form.write_types import Known, infer_with_bodies
from weft_graph.passes.inference_mode import to_inference
from weft_graph.topological import topological_order
from weft_graph.types import array_text

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
