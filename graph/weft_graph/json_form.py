"""A graph's JSON form, which is what users submit; `json_schema/graph-1.schema.json` describes it."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any, Final

from weft_graph.errors import GraphFormatError
from weft_graph.ir import Graph, Parameter
from weft_graph.json_place import Place
from weft_graph.limits import GRAPH_LIMITS
from weft_graph.names import duplicates, node_definitions, value_definitions
from weft_graph.record_json import (
    Json,
    constant_to_json,
    constants_from_json,
    initializer_from_json,
    initializer_to_json,
    input_from_json,
    input_to_json,
    node_to_json,
    nodes_from_json,
    type_from_json,
    type_to_json,
    version_from_json,
)

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
