"""The pass that computes nothing twice: global value numbering over a graph (Click 1995, without its loops).

Two nodes of one operator that read the same values with the same attributes give the same, to the bit; the inputs of
an operator that commutes are compared without order. What Identity gives is what it reads. What draws random numbers is
left, and what a user has put into different groups: a copy across devices may cost more than the computation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Node, Subgraph
from weft_graph.passes.draft import Draft
from weft_graph.passes.options import Options
from weft_graph.schema import schema_of


def common_subexpressions(draft: Draft, _options: Options) -> Draft:
    """The draft with the first of all equal nodes, and of constants that are equal to the bit."""
    same: dict[str, str] = {}
    constants = _distinct(draft.graph.constants, same)
    first: dict[Hashable, int] = {}
    kept: list[Node] = []
    for node in draft.graph.nodes:
        reading = node.reading(same)
        if (reading.domain, reading.op_type) == (ONNX_DOMAIN, "Identity"):
            same[reading.outputs[0]] = reading.inputs[0]
            continue
        if is_random(reading) or not reading.outputs:
            kept.append(reading)
            continue
        place = first.setdefault(_number(reading), len(kept))
        if place == len(kept):
            kept.append(reading)
        else:
            kept[place] = _merged(kept[place], reading, same)
    if not same and kept == list(draft.graph.nodes):
        return draft
    graph = replace(draft.graph, nodes=tuple(kept), constants=tuple(constants))
    return draft.renamed(same).having(graph, draft.types)


def is_random(node: Node) -> bool:
    """Whether the node, or one in its bodies, draws random numbers."""
    return schema_of(node).random or any(
        is_random(inner) for value in node.attributes.values() if isinstance(value, Subgraph) for inner in value.nodes
    )


def _distinct(constants: Iterable[Constant], same: dict[str, str]) -> list[Constant]:
    found: dict[Hashable, Constant] = {}
    for constant in constants:
        array = constant.array
        first = found.setdefault((array.dtype.name, array.shape, array.tobytes()), constant)
        if first is not constant:
            same[constant.name] = first.name
    return list(found.values())


def _number(node: Node) -> Hashable:
    """Equal for two nodes that give the same; outputs are not in it, for a node may name more of them."""
    schema = schema_of(node)
    inputs = tuple(sorted(node.inputs)) if schema.commutative else node.inputs
    attributes = tuple((name, _hashable(value)) for name, value in sorted(schema.attributes_of(node).items()))
    return node.domain, node.op_type, inputs, attributes, node.group


def _hashable(value: AttributeValue) -> Hashable:
    """Whole numbers, floats and truth values differ, 0.0 and -0.0 too; bodies are equal where they are one object."""
    if isinstance(value, Subgraph):
        return id(value)
    if isinstance(value, tuple):
        return tuple(_hashable(item) for item in value)
    return type(value), value.hex() if isinstance(value, float) else value


def _merged(first: Node, later: Node, same: dict[str, str]) -> Node:
    """`first`, naming also the outputs that `later` alone names; the others of `later` are `first`'s from here on."""
    length = max(len(first.outputs), len(later.outputs))
    names = [*first.outputs, *[""] * (length - len(first.outputs))]
    for place, name in enumerate(later.outputs):
        if name and names[place]:
            same[name] = names[place]
        elif name:
            names[place] = name
    return replace(first, outputs=tuple(names))
