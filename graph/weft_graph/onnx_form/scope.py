"""The nodes of one of a model's graphs, and of the bodies inside it, as weft's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import AttributeProto

from weft_graph.ir import AttributeValue, Constant, Node, Subgraph
from weft_graph.names import FreshNames
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.imported import Array
from weft_graph.onnx_form.tensors import array_of
from weft_graph.topological import topological_order

_ONNX_DOMAINS = frozenset({"", "ai.onnx"})


@dataclass(slots=True)
class Scope:
    """What reading one graph has gathered. `node_names` are the whole model's, whose nodes have names of their own."""

    node_names: FreshNames
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)

    def read(self, protos: Iterable[onnx.NodeProto]) -> None:
        """Adds the nodes; a Constant becomes a constant of the graph."""
        for proto in protos:
            name = self.node_names.fresh(proto.name or f"{proto.op_type}_{len(self.nodes)}")
            if proto.op_type == "Constant" and proto.domain in _ONNX_DOMAINS:
                self.constants.append(Constant(proto.output[0], _constant_value(proto, name)))
            else:
                self.nodes.append(self._node(proto, name))

    def _node(self, proto: onnx.NodeProto, name: str) -> Node:
        attributes: dict[str, AttributeValue] = {}
        bodies: dict[str, Subgraph] = {}
        for attribute in proto.attribute:
            if attribute.type == AttributeProto.GRAPH:
                bodies[attribute.name] = self._body(attribute.g)
            else:
                attributes.update(_attribute(attribute, name))
        captured = tuple(dict.fromkeys(value for body in bodies.values() for value in body.captured))
        for attribute_name, body in bodies.items():
            attributes[attribute_name] = Subgraph(body.inputs, captured, body.nodes, body.outputs, body.constants)
        return Node(
            op_type=proto.op_type,
            name=name,
            inputs=(*proto.input, *captured),
            outputs=tuple(proto.output),
            attributes=attributes,
            domain="" if proto.domain in _ONNX_DOMAINS else proto.domain,
        )

    def _body(self, proto: onnx.GraphProto) -> Subgraph:
        inner = Scope(self.node_names)
        inner.constants.extend(Constant(t.name, array_of(t, t.name)) for t in proto.initializer)
        inner.read(proto.node)
        inputs = tuple(value.name for value in proto.input)
        outputs = tuple(value.name for value in proto.output)
        nodes = topological_order(inner.nodes)
        return Subgraph(inputs, _captured(inputs, nodes, outputs, inner.constants), nodes, outputs, (*inner.constants,))


def _captured(
    inputs: Sequence[str], nodes: Sequence[Node], outputs: Sequence[str], constants: Sequence[Constant]
) -> tuple[str, ...]:
    """What the body reads of the values around it, in the order of its first use."""
    own = {*inputs, *(constant.name for constant in constants), *(name for node in nodes for name in node.outputs)}
    read = (name for names in (*(node.inputs for node in nodes), outputs) for name in names)
    return tuple(dict.fromkeys(name for name in read if name and name not in own))


def _constant_value(proto: onnx.NodeProto, name: str) -> Array:
    if len(proto.attribute) != 1:
        raise OnnxError(f"node {name!r} (Constant) has {len(proto.attribute)} attributes, and takes one", node=name)
    attribute = proto.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "value" and isinstance(value, onnx.TensorProto):
        return array_of(value, name)
    if attribute.name in {"value_float", "value_floats"}:
        return np.asarray(value, dtype="float32")
    if attribute.name in {"value_int", "value_ints"}:
        return np.asarray(value, dtype="int64")
    raise OnnxError(f"node {name!r} (Constant): weft's graphs have no {attribute.name}", node=name)


def _attribute(attribute: onnx.AttributeProto, node: str) -> dict[str, AttributeValue]:
    """A tensor of one element is that number and, beside it, its type: so is ConstantOfShape's."""
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.type:
        case AttributeProto.FLOAT | AttributeProto.INT:
            return {attribute.name: value}
        case AttributeProto.STRING:
            return {attribute.name: value.decode("utf-8", "replace")}
        case AttributeProto.INTS | AttributeProto.FLOATS:
            return {attribute.name: tuple(value)}
        case AttributeProto.STRINGS:
            return {attribute.name: tuple(item.decode("utf-8", "replace") for item in value)}
        case AttributeProto.TENSOR:
            array = array_of(value, node)
            if array.size == 1:
                return {attribute.name: array.reshape(-1)[0].item(), "dtype": value.data_type}
    kind = AttributeProto.AttributeType.Name(attribute.type)
    raise OnnxError(f"node {node!r}: attribute {attribute.name!r} is of kind {kind}, which weft lacks", node=node)
