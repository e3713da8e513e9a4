"""Whether a rule may update a key: its shape, and what an update takes of the shard that has the key whole.

A rule that goes element by element costs at most `RULE_LIMITS.nodes` operations an element, is spread over all shards
and runs in blocks, so nothing of it grows. Another one is run for the whole key on one shard, which other jobs share.
"""

from __future__ import annotations

from typing import Final

from weft_graph.cost import node_cost
from weft_graph.errors import GraphError, GraphRefusedError
from weft_graph.rules.binding import BoundRule, bound_rule, error_at
from weft_graph.rules.built_in import BUILT_IN
from weft_graph.rules.graph import RuleGraph
from weft_graph.rules.parts import why_whole
from weft_graph.types import TensorType

MOST_FLOPS_PER_ELEMENT: Final = 1 << 14
"""Five steps of Newton and Schulz for the square root of a matrix 512 wide; Adam takes 12."""
MOST_FLOPS: Final = 1 << 35
"""Of one key's update: about a second of one core."""
MOST_MOVED_BYTES: Final = 1 << 32
"""Read and written by one key's update: about a second of one core, where each element is a small part of the work."""
MOST_BYTES_PER_ELEMENT: Final = 256
"""Of values held at the same time: thirty-two of the key's shape in float64. An outer product takes the key's size."""
MOST_BYTES: Final = 1 << 30
"""Of values held at the same time, beside weight, gradient and state."""
FREE_ELEMENTS: Final = 1 << 10
"""A smaller key is allowed what one of this many elements is: a bias of ten may have its outer product."""


def check_rule_for(rule: RuleGraph, key: str, type_: TensorType, *, rows: bool = False) -> None:
    """Raises GraphRefusedError, naming key and node, where the rule cannot update keys of that type; `rows`: tables.

    Its pointer is one into the rule's document.
    """
    whole = why_whole(rule)
    if whole is not None and rows:
        message = f"key {key!r} is a table, of which a rule sees the touched rows alone, and {whole}"
        raise GraphRefusedError(message, pointer="/graph", node=key)
    try:
        bound = bound_rule(rule, type_.dtype, None if whole is None else type_.shape)
    except GraphError as error:
        raise error_at(key, _in_document(error)) from None
    if whole is not None:
        _check_cost(rule, key, type_, bound)


def check_built_in_for(name: str, key: str, type_: TensorType, *, rows: bool = False) -> None:
    """The same for the built-in rule of that name; the pointer is one into a rule's specification."""
    rule = BUILT_IN[name]
    if not rule.whole:
        return
    if rows:
        message = f"key {key!r} is a table, of which a rule sees the touched rows alone, and {rule.whole}"
        raise GraphRefusedError(message, pointer="/name", node=key)
    moved = rule.moves * type_.nbytes
    if moved > MOST_MOVED_BYTES:
        message = (
            f"key {key!r} ({type_}): {rule.whole}, and an update reads and writes {moved} bytes on one shard; "
            f"at most {MOST_MOVED_BYTES} are allowed"
        )
        raise GraphRefusedError(message, pointer="/name", node=key)


def _in_document(error: GraphError) -> GraphError:
    """Casts were put between the rule's nodes: a pointer to one of them is no pointer into the document."""
    return type(error)(error.message, pointer="/graph", node=error.node)


def _check_cost(rule: RuleGraph, key: str, type_: TensorType, bound: BoundRule) -> None:
    graph, types = bound.graph, bound.types
    unknown = next((name for name, made in types.items() if not made.is_static), None)
    if unknown is not None:
        message = f"key {key!r}: value {unknown!r} is {types[unknown]}, whose size is not known before the update"
        raise GraphRefusedError(message, pointer="/graph", node=unknown)
    elements = max(type_.size, FREE_ELEMENTS)
    most_flops = min(MOST_FLOPS, MOST_FLOPS_PER_ELEMENT * elements)
    most_bytes = min(MOST_BYTES, MOST_BYTES_PER_ELEMENT * elements)
    made = {name for node in graph.nodes for name in node.outputs}
    last_reader = {name: index for index, node in enumerate(graph.nodes) for name in (*node.outputs, *node.inputs)}
    last_reader.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    flops = held = moved = 0
    for index, node in enumerate(graph.nodes):
        where = f"key {key!r} ({type_}), rule {rule.name!r}: up to node {node.name!r} ({node.op_type}) an update"
        cost = node_cost(
            node, [types[name] if name else None for name in node.inputs], [types[n] for n in node.outputs if n]
        )
        flops += cost.flops
        held += cost.made_bytes
        moved += cost.moved_bytes
        if flops > most_flops:
            message = f"{where} takes {flops} operations; at most {most_flops} are allowed"
            raise GraphRefusedError(message, pointer="/graph", node=node.name)
        if moved > MOST_MOVED_BYTES:
            message = f"{where} reads and writes {moved} bytes; at most {MOST_MOVED_BYTES} are allowed"
            raise GraphRefusedError(message, pointer="/graph", node=node.name)
        if held > most_bytes:
            message = f"{where} holds {held} bytes at once; at most {most_bytes} are allowed"
            raise GraphRefusedError(message, pointer="/graph", node=node.name)
        done = {name for name in (*node.inputs, *node.outputs) if name in made and last_reader[name] == index}
        held -= sum(types[name].nbytes for name in done)
