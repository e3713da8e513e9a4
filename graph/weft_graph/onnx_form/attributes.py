"""ONNX's attributes as weft's: numbers, text and lists of them."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto

from weft_graph.ir import AttributeValue
from weft_graph.onnx_form.errors import Array, OnnxError, text
from weft_graph.onnx_form.tensors import Tensors

_FIELDS: Final = (
    ("f", AttributeProto.FLOAT),
    ("i", AttributeProto.INT),
    ("s", AttributeProto.STRING),
    ("t", AttributeProto.TENSOR),
    ("g", AttributeProto.GRAPH),
    ("floats", AttributeProto.FLOATS),
    ("ints", AttributeProto.INTS),
    ("strings", AttributeProto.STRINGS),
)


def kind_of(attribute: AttributeProto) -> int:
    """The attribute's kind. Files of IR version 1 do not say it: then it is that of the field that is filled."""
    if attribute.type != AttributeProto.UNDEFINED:
        return attribute.type
    filled = (kind for name, kind in _FIELDS if getattr(attribute, name) and _is_filled(attribute, name))
    return next(filled, AttributeProto.UNDEFINED)


def _is_filled(attribute: AttributeProto, name: str) -> bool:
    return len(name) > 1 or attribute.HasField(name)


def attribute_values(attribute: AttributeProto, tensors: Tensors, node: str) -> dict[str, AttributeValue]:
    """The attribute by name. A tensor of one element is that number and, beside it, its type: so is ConstantOfShape's.

    Raises OnnxError, naming the node.
    """
    name = text(attribute.name, f"node {node!r}: the name of an attribute")
    limits = tensors.limits
    match kind_of(attribute):
        case AttributeProto.FLOAT:
            return {name: as_written(attribute.f)}
        case AttributeProto.INT:
            return {name: attribute.i}
        case AttributeProto.STRING:
            return {name: _text(attribute.s, name, node, limits.text)}
        case AttributeProto.INTS:
            _check_items(attribute.ints, name, node, limits.attribute_items)
            return {name: tuple(attribute.ints)}
        case AttributeProto.FLOATS:
            _check_items(attribute.floats, name, node, limits.attribute_items)
            return {name: tuple(map(as_written, attribute.floats))}
        case AttributeProto.STRINGS:
            _check_items(attribute.strings, name, node, limits.attribute_items)
            return {name: tuple(_text(item, name, node, limits.text) for item in attribute.strings)}
        case AttributeProto.TENSOR:
            array = tensors.array(attribute.t, f"attribute {name!r} of node {node!r}")
            if array.size == 1:
                return {name: number_of(array), "dtype": attribute.t.data_type}
    kind = kind_of(attribute)
    known = AttributeProto.AttributeType.Name(kind) if kind in AttributeProto.AttributeType.values() else str(kind)
    raise OnnxError(f"node {node!r}: attribute {name!r} is of kind {known}, which weft lacks", node=node)


def as_written(number: float) -> float:
    """A file's float32 as the shortest decimal that rounds to it: 0.1, as its author wrote, and not 0.10000000149.

    In float32 they are one number; a model in float64 would otherwise compute with an error of 1e-8.
    """
    return float(str(np.float32(number)))


def number_of(array: Array) -> float | int:
    """The only element of an array as a number."""
    element = array.reshape(-1)[0]
    return int(element) if array.dtype.kind in "iub" else float(element)


def constant_array(proto: onnx.NodeProto, tensors: Tensors, node: str) -> Array:
    """The value of a Constant node. Raises OnnxError, naming it."""
    if len(proto.attribute) != 1:
        raise OnnxError(f"node {node!r} (Constant) has {len(proto.attribute)} attributes, and takes one", node=node)
    attribute = proto.attribute[0]
    match attribute.name, kind_of(attribute):
        case "value", AttributeProto.TENSOR:
            return tensors.array(attribute.t, f"node {node!r} (Constant)")
        case "sparse_value", AttributeProto.SPARSE_TENSOR:
            return tensors.dense(attribute.sparse_tensor, f"node {node!r} (Constant)")
        case "value_float", AttributeProto.FLOAT:
            return np.asarray(attribute.f, dtype=np.float32)
        case "value_floats", AttributeProto.FLOATS:
            return np.asarray(attribute.floats, dtype=np.float32)
        case "value_int", AttributeProto.INT:
            return np.asarray(attribute.i, dtype=np.int64)
        case "value_ints", AttributeProto.INTS:
            return np.asarray(attribute.ints, dtype=np.int64)
    name = text(attribute.name, f"node {node!r} (Constant): the name of its attribute")
    raise OnnxError(f"node {node!r} (Constant): weft's graphs have no {name}", node=node)


def _check_items(items: object, name: str, node: str, most: int) -> None:
    count = len(items)  # type: ignore[arg-type]  # a repeated field
    if count > most:
        raise OnnxError(
            f"node {node!r}: attribute {name!r} has {count} items, and at most {most} are allowed", node=node
        )


def _text(value: object, name: str, node: str, most: int) -> str:
    found = text(value, f"node {node!r}: attribute {name!r}")
    if len(found) > most:
        raise OnnxError(
            f"node {node!r}: attribute {name!r} has {len(found)} characters, and at most {most} are allowed", node=node
        )
    return found
