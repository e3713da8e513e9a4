"""Whether a graph is well-formed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from weft_graph.errors import DTypeError, GraphRefusedError, UnknownOperatorError
from weft_graph.ir import GIVEN, WEFT_DOMAIN, AttributeValue, Graph, Initializer, Node, Subgraph
from weft_graph.json_place import escape_token, shown
from weft_graph.limits import MOST_NESTED
from weft_graph.names import (
    RESERVED_PREFIX,
    Definition,
    all_nodes,
    bodies_of,
    duplicates,
    node_definitions,
    value_definitions,
)
from weft_graph.schema import Attribute, Formal, OpSchema, formal_at, schemas
from weft_graph.topological import topological_order
from weft_graph.types import DType, array_type
from weft_graph.weft_domain import USERS

# --- What a legal body is: everything that it reads is its own or captured, and nothing is defined twice --------------


def bodies_are_not_too_deep(graph: Graph) -> Iterator[GraphRefusedError]:
    """Bodies are inside bodies at most `MOST_NESTED` deep; the walks through them end there."""
    todo = [(node, f"/nodes/{index}", 0) for index, node in enumerate(graph.nodes)]
    while todo:
        node, pointer, depth = todo.pop()
        for name, body in bodies_of(node).items():
            place = f"{pointer}/attributes/{escape_token(name)}"
            if depth >= MOST_NESTED:
                yield _error(node, f"bodies are nested more than {MOST_NESTED} deep", place)
            else:
                todo += [(inner, f"{place}/nodes/{index}", depth + 1) for index, inner in enumerate(body.nodes)]


def bodies_capture_what_the_node_reads(graph: Graph) -> Iterator[GraphRefusedError]:
    """All bodies of a node capture the same values, which are the node's last inputs."""
    for node, pointer in all_nodes(graph.nodes):
        bodies = bodies_of(node)
        first = next(iter(bodies.values()), None)
        if first is None:
            continue
        for name, body in bodies.items():
            place = f"{pointer}/attributes/{escape_token(name)}/captured"
            if body.captured != first.captured:
                yield _error(node, f"{name} captures other values than {next(iter(bodies))}", place)
            elif len(body.captured) > len(node.inputs):
                message = f"{name} captures {len(body.captured)} values, and the node has {len(node.inputs)} inputs"
                yield _error(node, message, place)
            elif "" in node.captured(body):
                yield _error(node, f"an input that {name} captures is left out", f"{pointer}/inputs")


def bodies_are_closed(graph: Graph) -> Iterator[GraphRefusedError]:
    """A body's values have names of their own, its nodes are in an order that can be run, its outputs are defined."""
    for node, pointer in all_nodes(graph.nodes):
        for name, body in bodies_of(node).items():
            place = f"{pointer}/attributes/{escape_token(name)}"
            for problem, where in (*_name_problems(body), *_read_problems(body)):
                yield _error(node, f"in {name}: {problem}", f"{place}{where}")
            for index, constant in enumerate(body.constants):
                try:
                    array_type(constant.array)
                except ValueError:
                    yield DTypeError(
                        f"constant {constant.name!r} has elements of {constant.array.dtype}, which the graph has no "
                        "type for",
                        pointer=f"{place}/constants/{index}",
                        node=constant.name,
                    )


def _definitions(body: Subgraph) -> Iterator[Definition]:
    for kind, names in (("inputs", body.inputs), ("captured", body.captured)):
        for index, name in enumerate(names):
            yield Definition(name, f"/{kind}/{index}")
    for index, constant in enumerate(body.constants):
        yield Definition(constant.name, f"/constants/{index}/name")
    for index, node in enumerate(body.nodes):
        for place, name in enumerate(node.outputs):
            if name:
                yield Definition(name, f"/nodes/{index}/outputs/{place}")


def _name_problems(body: Subgraph) -> Iterator[tuple[str, str]]:
    for definition in _definitions(body):
        if not definition.name:
            yield "a value's name is empty", definition.pointer
        elif definition.name.startswith(RESERVED_PREFIX):
            message = f"name {definition.name!r}: names that begin with {RESERVED_PREFIX!r} are the converter's"
            yield message, definition.pointer
    for earlier, later in duplicates(_definitions(body)):
        yield f"value {later.name!r} is defined already at {earlier.pointer}", later.pointer


def _read_problems(body: Subgraph) -> Iterator[tuple[str, str]]:
    defined = {*body.inputs, *body.captured, *(constant.name for constant in body.constants)}
    for index, node in enumerate(body.nodes):
        for place, name in enumerate(node.inputs):
            if name and name not in defined:
                yield (
                    f"node {node.name!r} ({node.op_type}) reads {name!r}, which nothing before it defines",
                    f"/nodes/{index}/inputs/{place}",
                )
        defined.update(name for name in node.outputs if name)
    for index, name in enumerate(body.outputs):
        if name not in defined:
            yield f"output {name!r} is a value that nothing defines", f"/outputs/{index}"


def _error(node: Node, message: str, pointer: str) -> GraphRefusedError:
    return GraphRefusedError(f"node {node.name!r} ({node.op_type}): {message}", pointer=pointer, node=node.name)


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
