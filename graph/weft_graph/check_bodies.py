"""What a legal body is: everything that it reads is its own or captured, and nothing is defined twice."""

from __future__ import annotations

from collections.abc import Iterator

from weft_graph.errors import DTypeError, GraphRefusedError
from weft_graph.ir import Graph, Node, Subgraph
from weft_graph.json_place import escape_token
from weft_graph.limits import MOST_NESTED
from weft_graph.names import RESERVED_PREFIX, Definition, all_nodes, bodies_of, duplicates
from weft_graph.types import array_type


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
