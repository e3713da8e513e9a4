"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from weft_graph.onnx_form.errors import ReadOptions
from weft_graph.onnx_form.reader import read_model
from weft_kernels.evaluate import evaluate

Array = np.ndarray[Any, np.dtype[Any]]
Shape = Sequence[int | str | None] | None


def floats(name: str, *shape: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def initializer(name: str, array: Array) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def weights(name: str, *shape: int) -> TensorProto:
    return initializer(name, np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = ("y",),
    initializers: Sequence[TensorProto] = (),
    *,
    opset: int = 28,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", inputs or [floats("x", 2, 3)], [onnx.ValueInfoProto(name=name) for name in outputs], initializers
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array], options: ReadOptions | None = None) -> list[Array]:
    """The model's outputs by weft's kernels."""
    imported = read_model(proto, options or ReadOptions(training=False))
    outputs = evaluate(imported.graph, feeds, parameters=imported.values)
    return [outputs[name] for name in imported.graph.outputs]
