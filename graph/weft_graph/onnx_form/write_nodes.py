"""Writes nodes and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, defs

from weft_graph.attributes import as_int
from weft_graph.dimensions import is_unknown
from weft_graph.ir import ONNX_DOMAIN, WEFT_DOMAIN, AttributeValue, Constant, Node, Subgraph
from weft_graph.names import FreshNames
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.onnx_form.errors import Array, OnnxError, trimmed
from weft_graph.onnx_form.newest import newest_form_since
from weft_graph.onnx_form.own_metadata import GROUP, OPERATOR
from weft_graph.types import DType, TensorType, array_type
from weft_graph.weft_domain import EMBEDDING, STOP_GRADIENT

# --- weft's arrays as ONNX's tensors ----------------------------------------------------------------------------------


OWN: Final = {(STOP_GRADIENT, "Identity"), (EMBEDDING, "Gather")}
"""weft's operators and the ONNX ones that they are written as, which say so in their metadata."""
_BITS: Final = {DType.INT4: 4, DType.UINT4: 4, DType.FLOAT4E2M1: 4, DType.INT2: 2, DType.UINT2: 2}


def tensor_proto(name: str, array: Array) -> onnx.TensorProto:
    """The array under that name, its elements in the message."""
    tensor = empty_tensor(name, array)
    tensor.raw_data = raw_bytes(array)
    return tensor


def empty_tensor(name: str, array: Array) -> onnx.TensorProto:
    """Name, type and shape alone."""
    type_ = array_type(array)
    return onnx.TensorProto(name=name, data_type=NUMBER_OF_DTYPE[type_.dtype], dims=type_.static_shape)


def raw_bytes(array: Array) -> bytes:
    """The elements, little-endian; those of less than a byte are packed, the first in the lowest bits."""
    dtype = array_type(array).dtype
    bits = _BITS.get(dtype)
    if bits is None:
        return np.ascontiguousarray(array, dtype=dtype.numpy).tobytes()
    per_byte = 8 // bits
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, dtype=np.uint8)
    padded[: codes.size] = codes
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return bytes(packed.astype(np.uint8))


_Kind = defs.OpSchema.AttrType
_KINDS: Final = {
    _Kind.FLOAT: AttributeProto.FLOAT,
    _Kind.INT: AttributeProto.INT,
    _Kind.STRING: AttributeProto.STRING,
    _Kind.FLOATS: AttributeProto.FLOATS,
    _Kind.INTS: AttributeProto.INTS,
    _Kind.STRINGS: AttributeProto.STRINGS,
    _Kind.GRAPH: AttributeProto.GRAPH,
}


_SPLIT_COUNTS: Final = 18

_LAST_WINDOWS: Final = 22
"""From here on no window of a pool that rounds up begins in the padding behind its input."""


@dataclass(slots=True)
class NodeWriter:
    """Writes nodes of `opset`. What a node needs beside itself becomes constants; names are unique in the whole model,
    in its bodies too."""

    opset: int
    names: FreshNames
    types: Mapping[str, TensorType]
    bodies: Mapping[int, Mapping[str, TensorType]]
    """Types of the values in each body, by its identity."""
    constants: list[Constant] = field(default_factory=list)
    domains: set[str] = field(default_factory=set)

    def protos(self, node: Node, renamed: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
        """The node, with values called as `renamed` says. Raises OnnxError, naming the node, where `opset` has none."""
        for one in self._of_onnx(_renamed(node, renamed)):
            self.domains.add(one.domain)
            yield self._proto(one, node, renamed)

    def _of_onnx(self, node: Node) -> list[Node]:
        """The node in ONNX's words."""
        if node.domain == WEFT_DOMAIN and node.op_type == EMBEDDING:
            return self._embedding(node)
        if node.domain == WEFT_DOMAIN and node.op_type == STOP_GRADIENT:
            return [replace(node, op_type="Identity", domain=ONNX_DOMAIN)]
        if node.domain == WEFT_DOMAIN:
            raise OnnxError(f"node {node.name!r}: ONNX has no word for {node.op_type}", node=node.name)
        return [self._lists_as_inputs(self._with_statistics(self._with_num_outputs(node)))]

    def _embedding(self, node: Node) -> list[Node]:
        """Rows by Gather; those of the padding are asked for as row 0 and zeroed."""
        table, ids = node.inputs
        padding = node.attributes.get("padding_id")
        if padding is None:
            return [replace(node, op_type="Gather", domain=ONNX_DOMAIN, attributes={"axis": 0})]
        type_, id_type = self._type(node, table), self._type(node, ids)
        number = self._constant(node, "padding", np.asarray(as_int(padding), dtype=id_type.dtype.numpy))
        first = self._constant(node, "first_row", np.asarray(0, dtype=id_type.dtype.numpy))
        zero = self._constant(node, "zero", np.asarray(0, dtype=type_.dtype.numpy))
        is_padding, asked, rows = (self.names.fresh(f"{node.name}/{word}") for word in ("is_padding", "ids", "rows"))
        made = [
            Node("Equal", f"{node.name}/Equal", (ids, number), (is_padding,)),
            Node("Where", f"{node.name}/Ids", (is_padding, first, ids), (asked,)),
            replace(node, op_type="Gather", domain=ONNX_DOMAIN, inputs=(table, asked), outputs=(rows,), attributes={}),
        ]
        mask = is_padding
        if type_.rank > 1:
            axes = self._constant(node, "axes", np.arange(1 - type_.rank, 0, dtype=np.int64))
            mask = self.names.fresh(f"{node.name}/mask")
            made.append(Node("Unsqueeze", f"{node.name}/Unsqueeze", (is_padding, axes), (mask,)))
        made.append(Node("Where", f"{node.name}/Where", (mask, zero, rows), node.outputs))
        return made

    def _with_num_outputs(self, node: Node) -> Node:
        """From opset 18 on Split into equal parts says into how many."""
        is_split = node.op_type == "Split" and node.domain == ONNX_DOMAIN
        if not is_split or self.opset < _SPLIT_COUNTS or "split" in node.attributes or any(node.inputs[1:]):
            return node
        return replace(node, attributes={**node.attributes, "num_outputs": len(node.outputs)})

    def _with_statistics(self, node: Node) -> Node:
        """BatchNormalization in training mode names its new statistics."""
        is_normalization = node.op_type == "BatchNormalization" and node.domain == ONNX_DOMAIN
        if not is_normalization or not node.attributes.get("training_mode"):
            return node
        given = (*node.outputs, "", "")[:3]
        words = ("", "running_mean", "running_var")
        named = (out or self.names.fresh(f"{node.name}/{word}") for out, word in zip(given, words, strict=True))
        return replace(node, outputs=tuple(named))

    def _lists_as_inputs(self, node: Node) -> Node:
        """What older opsets have as an attribute, and weft takes as one, is an input by that name."""
        schema = self._schema(node)
        if schema is None:
            return node
        inputs = list(node.inputs)
        attributes = dict(node.attributes)
        for place, formal in enumerate(schema.inputs):
            value = attributes.get(formal.name)
            if formal.name in schema.attributes or value is None or isinstance(value, Subgraph | str):
                continue
            del attributes[formal.name]
            inputs += [""] * (place + 1 - len(inputs))
            dtype = np.dtype(np.int64) if isinstance(value, tuple) else self._type(node, node.inputs[0]).dtype.numpy
            inputs[place] = self._constant(node, formal.name, np.asarray(value).astype(dtype))
        return replace(node, inputs=tuple(inputs), attributes=attributes)

    def _type(self, node: Node, value: str) -> TensorType:
        """Raises OnnxError for a value in a body, whose type is not known here."""
        type_ = self.types.get(value)
        if type_ is None:
            raise OnnxError(f"node {node.name!r} ({node.op_type}): the type of {value!r} is not known", node=node.name)
        return type_

    def _check_types(self, node: Node, names: Sequence[str], formals: Sequence[defs.OpSchema.FormalParameter]) -> None:
        """Older opsets have operators for fewer element types. Raises OnnxError."""
        for place, name in enumerate(names):
            type_ = self.types.get(name)
            if type_ is None:
                continue
            word = onnx.TensorProto.DataType.Name(NUMBER_OF_DTYPE[type_.dtype]).lower()
            if f"tensor({word})" not in formals[min(place, len(formals) - 1)].types:
                raise OnnxError(
                    f"node {node.name!r} ({node.op_type}): opset {self.opset} has it for no {type_.dtype}",
                    node=node.name,
                )

    def _constant(self, node: Node, word: str, array: np.ndarray) -> str:
        name = self.names.fresh(f"{node.name}/{word}")
        self.constants.append(Constant(name, array))
        return name

    def _schema(self, node: Node) -> defs.OpSchema | None:
        """The operator in this opset. Raises OnnxError where it has none, or one that means something else."""
        if node.domain != ONNX_DOMAIN:
            return None
        since = newest_form_since(node.op_type)
        if node.attributes.get("ceil_mode"):
            since = max(since, _LAST_WINDOWS)
        if not defs.has(node.op_type, max_inclusive_version=self.opset, domain=ONNX_DOMAIN) or since > self.opset:
            raise OnnxError(
                f"node {node.name!r}: opset {self.opset} has no {node.op_type} that means this", node=node.name
            )
        return defs.get_schema(node.op_type, max_inclusive_version=self.opset, domain=ONNX_DOMAIN)

    def _proto(self, node: Node, source: Node, renamed: Mapping[str, str]) -> onnx.NodeProto:
        schema = self._schema(node)
        bodies = [value for value in node.attributes.values() if isinstance(value, Subgraph)]
        captured = len(bodies[0].captured) if bodies else 0
        inputs = trimmed(node.inputs[: len(node.inputs) - captured])
        if schema is not None and (len(inputs) > schema.max_input or len(trimmed(node.outputs)) > schema.max_output):
            raise OnnxError(f"node {node.name!r} ({node.op_type}): opset {self.opset} has fewer inputs", node=node.name)
        if schema is not None:
            self._check_types(node, inputs, schema.inputs)
            self._check_types(node, node.outputs, schema.outputs)
        proto = onnx.NodeProto(
            op_type=node.op_type, name=node.name, input=inputs, output=trimmed(node.outputs), domain=node.domain
        )
        outer = node.inputs[len(node.inputs) - captured :]
        for name, value in node.attributes.items():
            attribute = self._attribute(node, schema, name, value, outer)
            if attribute is not None:
                proto.attribute.append(attribute)
        if source.group:
            proto.metadata_props.add(key=GROUP, value=source.group)
        if source.domain == WEFT_DOMAIN and (source.op_type, proto.op_type) in OWN:
            proto.metadata_props.add(key=OPERATOR, value=source.op_type)
        return proto

    def _attribute(
        self, node: Node, schema: defs.OpSchema | None, name: str, value: AttributeValue, outer: Sequence[str]
    ) -> AttributeProto | None:
        """None for what the operator does not have where that is its meaning anyway."""
        if node.op_type == "ConstantOfShape" and node.domain == ONNX_DOMAIN:
            return _filled(node) if name == "value" else None
        if isinstance(value, Subgraph):
            return AttributeProto(
                name=name, type=AttributeProto.GRAPH, g=self._body(value, f"{node.name}/{name}", outer)
            )
        if schema is None:
            return onnx.helper.make_attribute(name, list(value) if isinstance(value, tuple) else value)
        formal = schema.attributes.get(name)
        if formal is None:
            if value == _default(node, name):
                return None
            raise OnnxError(
                f"node {node.name!r} ({node.op_type}): opset {self.opset} has no attribute {name!r}", node=node.name
            )
        items = list(value) if isinstance(value, tuple) else value
        return onnx.helper.make_attribute(name, items, attr_type=_KINDS[formal.type])

    def _body(self, body: Subgraph, name: str, outer: Sequence[str]) -> onnx.GraphProto:
        """A body reads what it captured by its name outside."""
        renamed = dict(zip(body.captured, outer, strict=True))
        own = [*body.inputs, *(constant.name for constant in body.constants)]
        own += [output for node in body.nodes for output in node.outputs if output]
        renamed.update((value, self.names.fresh(value)) for value in own)
        known = self.bodies.get(id(body), {})
        types = {renamed.get(value, value): type_ for value, type_ in known.items()}
        inner = NodeWriter(self.opset, self.names, types, self.bodies, domains=self.domains)
        nodes = [proto for node in body.nodes for proto in inner.protos(node, renamed)]
        graph = onnx.GraphProto(name=name, node=nodes)
        graph.input.extend(value_info(renamed[value], known.get(value)) for value in body.inputs)
        outputs = []
        for value in body.outputs:
            is_own = value in renamed and value not in body.captured
            outputs.append(renamed[value] if is_own else self._passed_on(graph, renamed[value], name))
        graph.output.extend(
            value_info(name, known.get(value)) for name, value in zip(outputs, body.outputs, strict=True)
        )
        graph.initializer.extend(tensor_proto(renamed[constant.name], constant.array) for constant in body.constants)
        graph.initializer.extend(tensor_proto(constant.name, constant.array) for constant in inner.constants)
        return graph

    def _passed_on(self, graph: onnx.GraphProto, value: str, name: str) -> str:
        """ONNX's bodies give values of their own alone: one from outside goes through an Identity."""
        made = self.names.fresh(f"{name}/Identity")
        graph.node.add(op_type="Identity", name=made, input=[value], output=[made])
        return made


def value_info(name: str, type_: TensorType | None) -> onnx.ValueInfoProto:
    """The value and its type; what only a step's values decide has no name in the file."""
    if type_ is None:
        return onnx.ValueInfoProto(name=name)
    dims = [None if is_unknown(dim) else dim for dim in type_.shape]
    return onnx.helper.make_tensor_value_info(name, NUMBER_OF_DTYPE[type_.dtype], dims)


def _renamed(node: Node, renamed: Mapping[str, str]) -> Node:
    return replace(
        node,
        inputs=tuple(renamed.get(name, name) for name in node.inputs),
        outputs=tuple(renamed.get(name, name) for name in node.outputs),
    )


def _filled(node: Node) -> AttributeProto:
    """ConstantOfShape's number and type as a tensor of one element."""
    number = as_int(node.attributes.get("dtype", onnx.TensorProto.FLOAT))
    array = np.asarray([node.attributes["value"]]).astype(DTYPE_OF_NUMBER[number].numpy)
    return AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor_proto("", array))


def _default(node: Node, name: str) -> object:
    """What the newest opset takes where the attribute is left out."""
    schema = defs.get_schema(node.op_type, domain=node.domain)
    formal = schema.attributes.get(name)
    if formal is None or not formal.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(formal.default_value)
    return value.decode() if isinstance(value, bytes) else value
