"""The order in which a file's nodes can run, and what its bodies read of the values around them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from weft_graph.ir import Node
from weft_graph.limits import MOST_NESTED
from weft_graph.onnx_form.attributes import kind_of
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.text import text
from weft_graph.topological import topological_order


def name_of(proto: onnx.NodeProto, place: int) -> str:
    """What errors call a node; one without a name is called by its operator and place."""
    return text(proto.name, "the name of a node") or f"{text(proto.op_type, 'an operator')}_{place}"


def runnable(protos: Sequence[onnx.NodeProto]) -> list[tuple[int, onnx.NodeProto]]:
    """The nodes with their places in the file, each after those that it reads. Raises GraphRefusedError for a cycle."""
    nodes = [
        Node(str(place), name_of(proto, place), tuple(_reads(proto, 0)), tuple(_names(proto.output)))
        for place, proto in enumerate(protos)
    ]
    return [(int(node.op_type), protos[int(node.op_type)]) for node in topological_order(nodes)]


def _names(names: Sequence[str]) -> list[str]:
    return [text(name, "the name of a value") for name in names]


def _reads(proto: onnx.NodeProto, depth: int) -> list[str]:
    """What the node reads, and what its bodies read of the values around them."""
    reads = _names(proto.input)
    for attribute in proto.attribute:
        if kind_of(attribute) == onnx.AttributeProto.GRAPH:
            reads.extend(_free(attribute.g, depth + 1))
    return reads


def _free(graph: onnx.GraphProto, depth: int) -> list[str]:
    if depth > MOST_NESTED:
        raise OnnxError(f"bodies are nested more than {MOST_NESTED} deep")
    own = {text(value.name, "an input of a body") for value in graph.input}
    own.update(text(tensor.name, "an initializer of a body") for tensor in graph.initializer)
    own.update(text(tensor.values.name, "an initializer of a body") for tensor in graph.sparse_initializer)
    own.update(name for node in graph.node for name in _names(node.output))
    read = [name for node in graph.node for name in _reads(node, depth)]
    read.extend(text(value.name, "an output of a body") for value in graph.output)
    return [name for name in dict.fromkeys(read) if name not in own]
