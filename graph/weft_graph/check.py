"""What a legal user graph is: one row per requirement, each of which finds what breaks it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from weft_graph.check_bodies import (
    bodies_are_closed,
    bodies_are_not_too_deep,
    bodies_capture_what_the_node_reads,
)
from weft_graph.errors import DTypeError, GraphRefusedError, UnknownOperatorError
from weft_graph.ir import GIVEN, WEFT_DOMAIN, AttributeValue, Graph, Initializer, Node
from weft_graph.json_place import escape_token, shown
from weft_graph.names import RESERVED_PREFIX, all_nodes, duplicates, node_definitions, value_definitions
from weft_graph.schema import Attribute, Formal, OpSchema, formal_at, schemas
from weft_graph.topological import topological_order
from weft_graph.types import DType, array_type
from weft_graph.weft_domain import USERS

Legality = Callable[[Graph], Iterator[GraphRefusedError]]
"""One thing that a legal graph keeps to: finds every place that does not."""

INITIALIZERS: Final[Mapping[str, tuple[str, ...]]] = {
    "ConstantOfShape": ("value",),
    "RandomUniform": ("low", "high"),
    "RandomNormal": ("mean", "scale"),
    GIVEN: (),
}
"""What may make a first value, with the numbers that each takes; all of them are given. `Given` is a value that comes
beside the graph."""

STORED: Final = frozenset({DType.FLOAT16, DType.FLOAT32, DType.FLOAT64})
"""Element types of parameters. What computes in bfloat16 keeps its weights in float32 and casts what it fetched."""

_DIMENSION_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check(graph: Graph) -> None:
    """Raises the first GraphRefusedError of `problems`; a graph that passes has types, see `weft_graph.infer`."""
    for problem in problems(graph):
        raise problem


def problems(graph: Graph) -> Iterator[GraphRefusedError]:
    """Everything about the graph that is not legal, each with its pointer and its node's or value's name."""
    for legality in LEGALITIES:
        yield from legality(graph)


def _names_are_unique(graph: Graph) -> Iterator[GraphRefusedError]:
    for kind, definitions in (("value", value_definitions(graph)), ("node", node_definitions(graph))):
        for earlier, later in duplicates(definitions):
            yield GraphRefusedError(
                f"{kind} {later.name!r} at {later.pointer} is defined already at {earlier.pointer}",
                pointer=later.pointer,
                node=later.node or later.name,
            )


def _names_are_the_users(graph: Graph) -> Iterator[GraphRefusedError]:
    for definitions in (value_definitions(graph), node_definitions(graph)):
        for definition in definitions:
            if not definition.name:
                yield GraphRefusedError(f"the name at {definition.pointer} is empty", pointer=definition.pointer)
            elif definition.name.startswith(RESERVED_PREFIX):
                yield GraphRefusedError(
                    f"name {definition.name!r}: names that begin with {RESERVED_PREFIX!r} are the converter's",
                    pointer=definition.pointer,
                    node=definition.node or definition.name,
                )


def _dimensions_are_named(graph: Graph) -> Iterator[GraphRefusedError]:
    """A symbolic dimension is a plain word, since products of them are written with `*`: `4*batch`."""
    for index, input_ in enumerate(graph.inputs):
        for place, dim in enumerate(input_.type.shape):
            if isinstance(dim, str) and not _DIMENSION_NAME.fullmatch(dim):
                yield GraphRefusedError(
                    f"input {input_.name!r} is {input_.type}; {dim!r} is no name of a dimension, "
                    "which has letters, digits and '_' and begins with no digit",
                    pointer=f"/inputs/{index}/shape/{place}",
                    node=input_.name,
                )


def _parameters_can_be_kept(graph: Graph) -> Iterator[GraphRefusedError]:
    for index, parameter in enumerate(graph.parameters):
        pointer, name = f"/parameters/{index}", parameter.name
        type_ = parameter.type
        if not type_.is_static:
            message = f"parameter {name!r} is {type_}; a parameter's dimensions are numbers"
            yield GraphRefusedError(message, pointer=f"{pointer}/shape", node=name)
        elif type_.size == 0:
            message = f"parameter {name!r} is {type_}; a parameter has at least one element"
            yield GraphRefusedError(message, pointer=f"{pointer}/shape", node=name)
        if type_.dtype not in STORED:
            message = f"parameter {name!r} is {type_}; a parameter's elements are {', '.join(sorted(STORED))}"
            yield DTypeError(message, pointer=f"{pointer}/dtype", node=name)
        problem = _initializer_problem(parameter.initializer)
        if problem is not None:
            message = f"parameter {name!r}: {problem}"
            yield GraphRefusedError(message, pointer=f"{pointer}/initializer", node=name)


def _initializer_problem(initializer: Initializer) -> str | None:
    expected = INITIALIZERS.get(initializer.op_type)
    if expected is None:
        return f"there is no initializer {initializer.op_type!r}; there are {', '.join(INITIALIZERS)}"
    if set(initializer.attributes) != set(expected):
        given = ", ".join(initializer.attributes) or "nothing"
        return f"{initializer.op_type} takes {' and '.join(expected)}, given {given}"
    numbers = initializer.attributes
    if not all(math.isfinite(number) for number in numbers.values()):
        return f"{initializer.op_type} takes finite numbers, given {dict(numbers)}"
    if initializer.op_type == "RandomUniform" and numbers["low"] > numbers["high"]:
        return f"RandomUniform has low {numbers['low']} above high {numbers['high']}"
    if initializer.op_type == "RandomNormal" and numbers["scale"] < 0:
        return f"RandomNormal has a negative scale {numbers['scale']}"
    return None


def _constants_have_known_types(graph: Graph) -> Iterator[GraphRefusedError]:
    for index, constant in enumerate(graph.constants):
        try:
            array_type(constant.array)
        except ValueError:
            yield DTypeError(
                f"constant {constant.name!r} has elements of {constant.array.dtype}, which the graph has no type for",
                pointer=f"/constants/{index}",
                node=constant.name,
            )


def _operators_are_known(graph: Graph) -> Iterator[GraphRefusedError]:
    for node, place in all_nodes(graph.nodes):
        if node.domain == WEFT_DOMAIN and node.op_type not in USERS:
            but = ", ".join(sorted(USERS))
            message = f"node {node.name!r}: operators of the domain {WEFT_DOMAIN!r} are the converter's, but for {but}"
            yield UnknownOperatorError(message, pointer=f"{place}/domain", node=node.name)
        elif _schema(node) is None:
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            message = f"node {node.name!r}: there is no operator {operator!r}"
            yield UnknownOperatorError(message, pointer=f"{place}/op_type", node=node.name)


def _schema(node: Node) -> OpSchema | None:
    return schemas().get((node.domain, node.op_type))


def _nodes_have_their_values(graph: Graph) -> Iterator[GraphRefusedError]:
    for node, where in all_nodes(graph.nodes):
        schema = _schema(node)
        if schema is None:
            continue
        for kind, names, formals in (
            ("input", node.inputs, schema.inputs),
            ("output", node.outputs, schema.outputs),
        ):
            for place, problem in _arity_problems(kind, names, formals):
                pointer = f"{where}/{kind}s" + ("" if place is None else f"/{place}")
                yield GraphRefusedError(
                    f"node {node.name!r} ({node.op_type}): {problem}", pointer=pointer, node=node.name
                )


def _arity_problems(kind: str, names: tuple[str, ...], formals: tuple[Formal, ...]) -> Iterator[tuple[int | None, str]]:
    for place, name in enumerate(names):
        formal = formal_at(formals, place)
        if formal is None:
            yield place, f"it has {len(formals)} {kind}s at most, given {len(names)}"
            return
        if not name and not formal.optional:
            yield place, f"{kind} {formal.name!r} is left out, and it is not optional"
    for formal in formals[len(names) :]:
        if not formal.optional:
            yield None, f"{kind} {formal.name!r} is missing; given {len(names)}"


def _attributes_fit(graph: Graph) -> Iterator[GraphRefusedError]:
    for node, where in all_nodes(graph.nodes):
        schema = _schema(node)
        if schema is None:
            continue
        for name, message in _attribute_problems(node, schema):
            pointer = f"{where}/attributes" + ("" if name is None else f"/{escape_token(name)}")
            yield GraphRefusedError(f"node {node.name!r} ({node.op_type}): {message}", pointer=pointer, node=node.name)


def _attribute_problems(node: Node, schema: OpSchema) -> Iterator[tuple[str | None, str]]:
    for name, value in node.attributes.items():
        formal = schema.attributes.get(name)
        if formal is None:
            known = ", ".join(schema.attributes) or "none"
            yield name, f"there is no attribute {name!r}; there are {known}"
        elif not _is_of_kind(value, formal):
            kind = f"tuple of {formal.of.__name__}s" if formal.kind is tuple else formal.kind.__name__
            yield name, f"attribute {name!r} is of kind {kind}, given {type(value).__name__} {shown(value)}"
        elif isinstance(value, float) and not math.isfinite(value):
            yield name, f"attribute {name!r} is {value}, which is not finite"
    for name, formal in schema.attributes.items():
        if formal.required and name not in node.attributes:
            yield None, f"attribute {name!r} is missing"


def _is_of_kind(value: AttributeValue, formal: Attribute) -> bool:
    """Whether the value is of the kind; a whole number is a float too, but a truth value is no number."""
    if formal.kind is tuple:
        return isinstance(value, tuple) and all(_is_item(item, formal.of) for item in value)
    return _is_item(value, formal.kind)


def _is_item(value: object, kind: type) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)


def _values_are_defined(graph: Graph) -> Iterator[GraphRefusedError]:
    defined = {definition.name for definition in value_definitions(graph)}
    for index, node in enumerate(graph.nodes):
        for place, name in enumerate(node.inputs):
            if name and name not in defined:
                yield GraphRefusedError(
                    f"node {node.name!r} ({node.op_type}) reads {name!r}, which nothing defines",
                    pointer=f"/nodes/{index}/inputs/{place}",
                    node=node.name,
                )
    if not graph.outputs:
        yield GraphRefusedError("the graph has no output", pointer="/outputs")
    for index, name in enumerate(graph.outputs):
        if name not in defined:
            message = f"output {name!r} is a value that nothing defines"
            yield GraphRefusedError(message, pointer=f"/outputs/{index}", node=name)


def _nodes_have_an_order(graph: Graph) -> Iterator[GraphRefusedError]:
    try:
        topological_order(graph.nodes)
    except GraphRefusedError as cycle:
        yield cycle


LEGALITIES: Final[tuple[Legality, ...]] = (
    bodies_are_not_too_deep,
    _names_are_unique,
    _names_are_the_users,
    _dimensions_are_named,
    _parameters_can_be_kept,
    _constants_have_known_types,
    _operators_are_known,
    _nodes_have_their_values,
    _attributes_fit,
    bodies_capture_what_the_node_reads,
    bodies_are_closed,
    _values_are_defined,
    _nodes_have_an_order,
)
