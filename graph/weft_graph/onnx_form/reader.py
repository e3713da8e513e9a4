"""Reads an ONNX model as one of weft's graphs."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import onnx
from onnx import inliner

from weft_graph.ir import Constant, Graph, Initializer, Input, Parameter
from weft_graph.names import FreshNames
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.imported import Array, Imported, ReadOptions
from weft_graph.onnx_form.scope import Scope
from weft_graph.onnx_form.tensors import array_of, dtype_of
from weft_graph.shapes.dims import Dim
from weft_graph.types import TensorType, array_type

GIVEN = "Given"
"""The initializer of a parameter whose first value is sent beside the graph."""


def read_model(model: onnx.ModelProto, options: ReadOptions | None = None) -> Imported:
    """The model's graph, its parameters' values and what people should know. Raises OnnxError and its kin."""
    options = options or ReadOptions()
    inlined = inliner.inline_local_functions(model) if model.functions else model
    proto = inlined.graph
    scope = Scope(FreshNames(()))
    parameters: list[Parameter] = []
    values: dict[str, Array] = {}
    for tensor in proto.initializer:
        array = array_of(tensor, tensor.name)
        if _is_parameter(tensor.name, array, options):
            parameters.append(Parameter(tensor.name, array_type(array), Initializer(GIVEN)))
            values[tensor.name] = array
        else:
            scope.constants.append(Constant(tensor.name, array))
    scope.read(proto.node)
    held = {tensor.name for tensor in proto.initializer}
    graph = Graph(
        name=proto.name or "model",
        inputs=tuple(_input(value) for value in proto.input if value.name not in held),
        parameters=tuple(parameters),
        nodes=tuple(scope.nodes),
        outputs=tuple(value.name for value in proto.output),
        constants=tuple(scope.constants),
    )
    return Imported(graph, values)


def _is_parameter(name: str, array: Array, options: ReadOptions) -> bool:
    if _matches(name, options.constants):
        return False
    if _matches(name, options.parameters):
        return True
    return array_type(array).dtype.is_float and array.ndim > 0


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _input(value: onnx.ValueInfoProto) -> Input:
    if value.type.WhichOneof("value") != "tensor_type":
        kind = value.type.WhichOneof("value") or "no type"
        raise OnnxError(f"input {value.name!r} is of {kind}, and weft's graphs have tensors alone", node=value.name)
    tensor = value.type.tensor_type
    dims: list[Dim] = []
    for place, dim in enumerate(tensor.shape.dim):
        dims.append(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}_{place}")
    return Input(value.name, TensorType(dtype_of(tensor.elem_type, value.name), tuple(dims)))
