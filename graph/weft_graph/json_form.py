"""Graphs and their records as JSON."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any, Final

import numpy as np

from weft_graph.dimensions import Dim, DimensionError, bound
from weft_graph.errors import GraphFormatError
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Graph, Initializer, Input, Node, Parameter, Subgraph
from weft_graph.json_place import Place, escape_token, shown
from weft_graph.limits import GRAPH_LIMITS, MOST_NESTED
from weft_graph.names import duplicates, node_definitions, value_definitions
from weft_graph.schema import schemas
from weft_graph.types import DType, TensorType, array_type

# --- The JSON forms of the records that graphs and programs share: types, inputs, constants, initializers, nodes ------


Json = dict[str, Any]

_DTYPES: Final = {dtype.value: dtype for dtype in DType}


def type_to_json(type_: TensorType) -> Json:
    return {"dtype": type_.dtype.value, "shape": list(type_.shape)}


def _dtype_from_json(place: Place) -> DType:
    dtype = _DTYPES.get(place.value) if isinstance(place.value, str) else None
    if dtype is None:
        raise place.expected(f"one of {', '.join(_DTYPES)}")
    return dtype


def _dim_from_json(place: Place) -> Dim:
    if not isinstance(place.value, str):
        return place.integer(0, place.limits.dim)
    try:
        bound(place.name(), {})
    except DimensionError as error:
        raise place.error(str(error)) from None
    return place.value


def type_from_json(fields: Mapping[str, Place]) -> TensorType:
    """Reads the members `dtype` and `shape` of a record. Raises GraphFormatError."""
    shape = fields["shape"]
    dims = tuple(map(_dim_from_json, shape.items(shape.limits.rank)))
    elements = math.prod(dim for dim in dims if isinstance(dim, int))
    if elements > shape.limits.elements:
        raise shape.error(f"{elements} elements, and at most {shape.limits.elements} are allowed")
    return TensorType(_dtype_from_json(fields["dtype"]), dims)


def input_to_json(input_: Input) -> Json:
    return {"name": input_.name, **type_to_json(input_.type)}


def input_from_json(place: Place) -> Input:
    fields = place.fields(("name", "dtype", "shape"))
    return Input(fields["name"].name(), type_from_json(fields))


def initializer_to_json(initializer: Initializer) -> Json:
    return {"op_type": initializer.op_type, "attributes": dict(initializer.attributes)}


def initializer_from_json(place: Place) -> Initializer:
    fields = place.fields(("op_type", "attributes"))
    numbers = fields["attributes"].members(place.limits.attributes)
    return Initializer(fields["op_type"].name(), {name: number.number() for name, number in numbers.items()})


def constant_to_json(constant: Constant) -> Json:
    """`data` is base64 (RFC 4648, section 4) of the elements, little-endian, last dimension fastest."""
    type_ = array_type(constant.array)
    data = np.asarray(constant.array, dtype=type_.dtype.numpy).tobytes()
    return {"name": constant.name, **type_to_json(type_), "data": base64.b64encode(data).decode("ascii")}


def _constant_from_json(place: Place) -> Constant:
    fields = place.fields(("name", "dtype", "shape", "data"))
    type_ = type_from_json(fields)
    if not type_.is_static:
        raise fields["shape"].error("a constant's dimensions are numbers")
    data = fields["data"]
    if not isinstance(data.value, str):
        raise data.expected("base64 text")
    size = 4 * -(-type_.nbytes // 3)
    if len(data.value) != size:
        raise data.error(f"{type_} takes {size} characters of base64, these are {len(data.value)}")
    try:
        raw = base64.b64decode(data.value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise data.error(f"not base64: {error}") from None
    if len(raw) != type_.nbytes:
        raise data.error(f"{type_} takes {type_.nbytes} bytes, these are {len(raw)}")
    if type_.dtype is DType.BOOL and raw.translate(None, b"\x00\x01"):
        raise data.error("an element of bool is a byte 0 or 1")
    return Constant(fields["name"].name(), np.frombuffer(raw, dtype=type_.dtype.numpy).reshape(type_.static_shape))


def constants_from_json(place: Place) -> tuple[Constant, ...]:
    """Reads an array of constants, whose bytes together are bounded."""
    constants: list[Constant] = []
    total = 0
    for item in place.items(place.limits.records):
        constant = _constant_from_json(item)
        total += constant.array.nbytes
        if total > place.limits.constant_bytes:
            raise item.error(f"constants take more than {place.limits.constant_bytes} bytes; make it a parameter")
        constants.append(constant)
    return tuple(constants)


def _subgraph_to_json(subgraph: Subgraph, pointer: str) -> Json:
    document: Json = {
        "inputs": list(subgraph.inputs),
        "captured": list(subgraph.captured),
        "nodes": [node_to_json(node, f"{pointer}/nodes/{index}") for index, node in enumerate(subgraph.nodes)],
        "outputs": list(subgraph.outputs),
    }
    constants = [constant_to_json(constant) for constant in subgraph.constants]
    return {**document, "constants": constants} if constants else document


def _subgraph_from_json(place: Place, depth: int) -> Subgraph:
    if depth >= MOST_NESTED:
        raise place.error(f"bodies are nested more than {MOST_NESTED} deep")
    fields = place.fields(("inputs", "nodes", "outputs"), ("captured", "constants"))
    records = place.limits.records

    def names(field: str) -> tuple[str, ...]:
        return tuple(value.name() for value in fields[field].items(records)) if field in fields else ()

    return Subgraph(
        inputs=names("inputs"),
        captured=names("captured"),
        nodes=nodes_from_json(fields["nodes"], depth + 1),
        outputs=names("outputs"),
        constants=constants_from_json(fields["constants"]) if "constants" in fields else (),
    )


def _attribute_to_json(value: AttributeValue, pointer: str) -> Any:
    if isinstance(value, Subgraph):
        return _subgraph_to_json(value, pointer)
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if isinstance(number, float) and not math.isfinite(number):
            raise GraphFormatError(f"{pointer}: JSON has no number for {number}", pointer=pointer)
    return list(value) if isinstance(value, tuple) else value


def node_to_json(node: Node, pointer: str) -> Json:
    """Raises GraphFormatError at an attribute that is not finite."""
    document: Json = {
        "op_type": node.op_type,
        "name": node.name,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attributes": {
            name: _attribute_to_json(value, f"{pointer}/attributes/{escape_token(name)}")
            for name, value in node.attributes.items()
        },
    }
    if node.domain != ONNX_DOMAIN:
        document["domain"] = node.domain
    if node.group:
        document["group"] = node.group
    return document


def _list_attribute(items: Sequence[Place]) -> AttributeValue:
    """A list of one kind. Whole numbers among fractions are floats: many writers drop a fraction that is zero."""
    if all(isinstance(item.value, str) for item in items):
        return tuple(item.text() for item in items)
    if any(isinstance(item.value, float) for item in items):
        return tuple(item.number() for item in items)
    return tuple(item.integer() for item in items)


def _attribute_from_json(place: Place, depth: int) -> AttributeValue:
    match place.value:
        case bool():
            return place.value
        case int():
            return place.integer()
        case float():
            return place.number()
        case str():
            return place.text()
        case list() | tuple():
            return _list_attribute(place.items(place.limits.attribute_items))
        case dict():
            return _subgraph_from_json(place, depth)
    raise place.expected("true, false, a number, text, an array of numbers or of texts, or a body")


def _as_schema_says(node: Node) -> Node:
    """A whole number where the operator's schema has a float is that float."""
    schema = schemas().get((node.domain, node.op_type))
    if schema is None:
        return node
    floats = {name for name, formal in schema.attributes.items() if formal.kind is float}
    attributes = {
        name: float(value) if name in floats and type(value) is int else value
        for name, value in node.attributes.items()
    }
    return replace(node, attributes=attributes)


def node_from_json(place: Place, depth: int = 0) -> Node:
    fields = place.fields(("op_type", "name", "inputs", "outputs"), ("attributes", "domain", "group"))
    attributes: dict[str, AttributeValue] = {}
    if "attributes" in fields:
        members = fields["attributes"].members(place.limits.attributes)
        attributes = {name: _attribute_from_json(member, depth) for name, member in members.items()}
    return _as_schema_says(
        Node(
            op_type=fields["op_type"].name(),
            name=fields["name"].name(),
            inputs=tuple(value.optional_name() for value in fields["inputs"].items(place.limits.node_values)),
            outputs=tuple(value.optional_name() for value in fields["outputs"].items(place.limits.node_values)),
            attributes=attributes,
            domain=fields["domain"].optional_name() if "domain" in fields else ONNX_DOMAIN,
            group=fields["group"].optional_name() if "group" in fields else "",
        )
    )


def nodes_from_json(place: Place, depth: int = 0) -> tuple[Node, ...]:
    """Reads nodes, and the bodies in them; `depth` counts the bodies around them."""
    nodes: list[Node] = []
    values = 0
    for item in place.items(place.limits.nodes):
        nodes.append(node_from_json(item, depth))
        values += _values_of(nodes[-1])
        if values > place.limits.values:
            raise item.error(f"the nodes up to here have {values} inputs and outputs; at most {place.limits.values}")
    return tuple(nodes)


def _values_of(node: Node) -> int:
    """The node's inputs and outputs, and those in its bodies."""
    bodies = [value for value in node.attributes.values() if isinstance(value, Subgraph)]
    return len(node.inputs) + len(node.outputs) + sum(_values_of(inner) for body in bodies for inner in body.nodes)


def version_from_json(place: Place, known: Sequence[int], what: str) -> None:
    """Refuses another version than those that this reader knows, saying both."""
    if type(place.value) is not int or place.value not in known:
        raise place.error(f"{what} {shown(place.value)} is unknown; this reader knows {' and '.join(map(str, known))}")


FORMAT_VERSION: Final = 1
OPSET: Final = 28
"""The version of ONNX's operator set whose semantics nodes have. Older forms that mean the same are taken too, such as
axes as an attribute; files of other versions are brought to this one by the ONNX reader."""

READ_OPSETS: Final = (15, OPSET)
"""Of JSON documents: what was written for 15 means the same in 28."""


def graph_to_json(graph: Graph) -> Json:
    """The graph as a JSON document. Raises GraphFormatError where it holds what JSON cannot: an infinite attribute."""
    return {
        "format_version": FORMAT_VERSION,
        "opset": OPSET,
        "name": graph.name,
        "inputs": [input_to_json(input_) for input_ in graph.inputs],
        "parameters": [_parameter_to_json(parameter) for parameter in graph.parameters],
        "constants": [constant_to_json(constant) for constant in graph.constants],
        "nodes": [node_to_json(node, f"/nodes/{index}") for index, node in enumerate(graph.nodes)],
        "outputs": list(graph.outputs),
    }


def graph_from_json(document: object) -> Graph:
    """Reads a parsed JSON document of any origin. Raises GraphFormatError, whose pointer says where, and nothing else.

    The graph is well formed and within `GRAPH_LIMITS`, and no name is defined twice; `check` says whether it is legal.
    """
    return graph_from_place(Place(document, limits=GRAPH_LIMITS))


def graph_from_place(place: Place) -> Graph:
    """The same for a graph inside a larger document, within the limits of that one."""
    fields = place.fields(
        ("format_version", "opset", "name", "inputs", "parameters", "nodes", "outputs"), ("constants",)
    )
    limits = place.limits
    version_from_json(fields["format_version"], (FORMAT_VERSION,), "format version")
    version_from_json(fields["opset"], READ_OPSETS, "opset")
    graph = Graph(
        name=fields["name"].name(),
        inputs=tuple(map(input_from_json, fields["inputs"].items(limits.records))),
        parameters=tuple(map(_parameter_from_json, fields["parameters"].items(limits.records))),
        nodes=nodes_from_json(fields["nodes"]),
        outputs=tuple(output.name() for output in fields["outputs"].items(limits.records)),
        constants=constants_from_json(fields["constants"]) if "constants" in fields else (),
    )
    for earlier, later in chain(duplicates(value_definitions(graph)), duplicates(node_definitions(graph))):
        pointer = f"{place.pointer}{later.pointer}"
        message = f"{pointer}: {later.name!r} is defined already at {place.pointer}{earlier.pointer}"
        raise GraphFormatError(message, pointer=pointer)
    return graph


def _parameter_to_json(parameter: Parameter) -> Json:
    """`row_sparse` and `lazy_update` are written only where they are false: older graphs keep their text."""
    document: Json = {
        "name": parameter.name,
        **type_to_json(parameter.type),
        "initializer": initializer_to_json(parameter.initializer),
        "trainable": parameter.trainable,
    }
    if not parameter.row_sparse:
        document["row_sparse"] = False
    if not parameter.lazy_update:
        document["lazy_update"] = False
    return document


def _parameter_from_json(place: Place) -> Parameter:
    fields = place.fields(("name", "dtype", "shape", "initializer"), ("trainable", "row_sparse", "lazy_update"))
    return Parameter(
        name=fields["name"].name(),
        type=type_from_json(fields),
        initializer=initializer_from_json(fields["initializer"]),
        trainable=fields["trainable"].boolean() if "trainable" in fields else True,
        row_sparse=fields["row_sparse"].boolean() if "row_sparse" in fields else True,
        lazy_update=fields["lazy_update"].boolean() if "lazy_update" in fields else True,
    )


@cache
def _schema_text() -> str:
    return resources.files("weft_graph").joinpath("json_schema", "graph-1.schema.json").read_text(encoding="utf-8")


def graph_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the JSON form; a new object, owned by the caller."""
    schema: dict[str, Any] = json.loads(_schema_text())
    return schema
