"""The pass that puts the taken branch of an If in its place where the condition is known: branch elimination.

Functions of a model are inlined by the reader. Nodes of the branch keep their names, which key random numbers; its
values get new ones, for they are the branch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft_graph.ir import ONNX_DOMAIN, Constant, Node, Subgraph
from weft_graph.names import FreshNames, node_definitions, value_definitions
from weft_graph.passes.draft import Draft
from weft_graph.passes.known_values import Known, known_values
from weft_graph.passes.options import Options


def inline(draft: Draft, _options: Options) -> Draft:
    """The draft without an If whose condition is known, also inside a branch that was taken."""
    while any(_is_if(node) for node in draft.graph.nodes):
        known = known_values(draft.graph)
        taken = {node.name: branch for node in draft.graph.nodes if (branch := _taken(node, known)) is not None}
        if not taken:
            break
        values = FreshNames(definition.name for definition in value_definitions(draft.graph))
        names = FreshNames(definition.name for definition in node_definitions(draft.graph))
        nodes: list[Node] = []
        constants = list(draft.graph.constants)
        for node in draft.graph.nodes:
            if node.name in taken:
                inside, own = _placed(node, taken[node.name], values, names)
                nodes += inside
                constants += own
            else:
                nodes.append(node)
        draft = draft.having(replace(draft.graph, nodes=tuple(nodes), constants=tuple(constants)))
    return draft


def _is_if(node: Node) -> bool:
    return node.domain == ONNX_DOMAIN and node.op_type == "If"


def _taken(node: Node, known: Known) -> Subgraph | None:
    if not _is_if(node) or node.inputs[0] not in known.values:
        return None
    branch = node.attributes["then_branch" if known.values[node.inputs[0]].item() else "else_branch"]
    return branch if isinstance(branch, Subgraph) else None


def _placed(node: Node, body: Subgraph, values: FreshNames, names: FreshNames) -> tuple[list[Node], Sequence[Constant]]:
    """The body's nodes and constants in the graph around `node`, whose outputs they give."""
    outer = dict(zip(body.captured, node.captured(body), strict=True))
    inside = {name for each in body.nodes for name in each.outputs if name}
    # A value of the body's own that is an output takes the output's name; what is given twice, or from outside, is
    # passed on by a node.
    for inner, output in zip(body.outputs, node.outputs, strict=False):
        if output and inner in inside and inner not in outer:
            outer[inner] = output
    for name in (*(constant.name for constant in body.constants), *inside):
        if name not in outer:
            outer[name] = values.fresh(f"{node.name}/{name}")
    placed = [
        replace(
            each.renamed(outer),
            group=each.group or node.group,
        )
        for each in body.nodes
    ]
    for inner, output in zip(body.outputs, node.outputs, strict=False):
        if output and outer[inner] != output:
            name = names.fresh(f"weft.branch/{node.name}")
            placed.append(Node("Identity", name, (outer[inner],), (output,), group=node.group))
    return placed, [Constant(outer[constant.name], constant.array) for constant in body.constants]
