"""A graph that was read, as expressions, so that a loss and whatever else can be built on its values in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.expression import Expression
from weft.records import (
    Application,
    Array,
    ConstantRecord,
    InputRecord,
    Label,
    NodeNames,
    ParameterRecord,
    Record,
    Value,
)
from weft_graph.infer import Inference
from weft_graph.ir import Graph, Node
from weft_graph.schema import schema_of
from weft_graph.topological import topological_order
from weft_graph.types import DType, TensorType, array_type

_LEFT_OUT = TensorType(DType.FLOAT32, ())
"""Of an output that the node does not give; nothing can ask for it."""


def expressions(graph: Graph, values: Mapping[str, Array]) -> dict[str, Expression]:
    """Every value of the graph by its name; `values` are first values of parameters. All names stay.

    Raises ShapeError or DTypeError.
    """
    found: dict[str, Expression] = {}
    for record, names in _leaves(graph, values):
        found[names] = Expression(record)
    inference = Inference({name: value.type for name, value in found.items()}, graph.constants)
    for node in topological_order(graph.nodes):
        inference.add(node)
        record = _application(node, inference, found)
        for place, name in enumerate(node.outputs):
            if name:
                found[name] = Expression(record, place)
    return found


def _leaves(graph: Graph, values: Mapping[str, Array]) -> Iterator[tuple[Record, str]]:
    for input_ in graph.inputs:
        yield InputRecord(Label(input_.name, given=True), (input_.type,)), input_.name
    for each in graph.parameters:
        label, value = Label(each.name, given=True), values.get(each.name)
        record = ParameterRecord(
            label, (each.type,), each.initializer, each.trainable, each.row_sparse, each.lazy_update, value
        )
        yield record, each.name
    for constant in graph.constants:
        type_ = array_type(constant.array)
        yield ConstantRecord(Label(constant.name, given=True), (type_,), constant.array), constant.name


def _application(node: Node, inference: Inference, found: Mapping[str, Value]) -> Application:
    return Application(
        label=Label(node.name, given=True),
        schema=schema_of(node),
        inputs=tuple(found[name] if name else None for name in node.inputs),
        attributes=node.attributes,
        types=tuple(inference.types[name] if name else _LEFT_OUT for name in node.outputs),
        known=inference.known.get(node.outputs[0]),
        names=NodeNames(node.name, node.outputs, node.group),
    )
