"""Passes that leave out what need not be computed: bodies inlined, constants folded, equal nodes joined, Relu
moved to where it has less to do, dead nodes dropped."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from weft_graph.attributes import as_ints
from weft_graph.infer import Inference
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Graph, Node, Subgraph
from weft_graph.names import FreshNames, node_definitions, pooled_name, value_definitions
from weft_graph.passes.draft import Draft, Options, made, readers
from weft_graph.schema import schema_of
from weft_graph.topological import backward_slice, topological_order


def _inferred(graph: Graph) -> Inference:
    """The types of a graph whose nodes are in runnable order, and its values that are known before any step."""
    given = {input_.name: input_.type for input_ in graph.inputs}
    given.update((parameter.name, parameter.type) for parameter in graph.parameters)
    inference = Inference(given, graph.constants)
    for node in graph.nodes:
        inference.add(node)
    return inference


# --- The pass that puts the taken branch of an If in its place where the condition is known: branch elimination -------
# Functions of a model are inlined by the reader. Nodes of the branch keep their names, which key random numbers; its
# values get new ones, for they are the branch's own.


def inline(draft: Draft, _options: Options) -> Draft:
    """Replaces an If whose condition is known by the branch that is taken."""
    while any(_is_if(node) for node in draft.graph.nodes):
        known = _inferred(draft.graph).known
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


def _taken(node: Node, known: Mapping[str, np.ndarray]) -> Subgraph | None:
    if not _is_if(node) or node.inputs[0] not in known:
        return None
    branch = node.attributes["then_branch" if known[node.inputs[0]].item() else "else_branch"]
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


# --- The pass that computes once what is known before any step: constant folding, without kernels ---------------------
# What exporters write around Reshape (Shape, Gather, Concat) disappears, and so do scales such as 1 / sqrt(64).


def constant_folding(draft: Draft, _options: Options) -> Draft:
    """Replaces nodes whose outputs are known by constants."""
    inference = _inferred(draft.graph)
    known = inference.known
    kept, folded = [], []
    for node in draft.graph.nodes:
        named = [name for name in node.outputs if name]
        if named and all(name in known for name in named):
            folded += [Constant(name, known[name]) for name in named]
        else:
            kept.append(node)
    graph = replace(draft.graph, nodes=tuple(kept), constants=(*draft.graph.constants, *folded))
    return draft.having(graph, inference.types) if folded else draft


# --- The pass that computes nothing twice: global value numbering over a graph (Click 1995, without its loops) --------
# Two nodes of one operator that read the same values with the same attributes give the same, to the bit; the inputs
# of an operator that commutes are compared without order. What Identity gives is what it reads. What draws random
# numbers is left, and what a user has put into different groups: a copy across devices may cost more than the
# computation.


def common_subexpressions(draft: Draft, _options: Options) -> Draft:
    """Keeps one of several equal nodes, and of constants that are equal to the bit."""
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


# --- The pass that moves Relu behind the MaxPool that reads it --------------------------------------------------------
# The largest element above zero is the largest element, above zero, and gradients go the same way: that of a window
# without any such element is zero in both orders. Relu, its gradient and what both hold have a quarter of the elements
# with windows of 2 x 2. The pooled value is a new one: the Relu's name would tell that it is above zero.


def pools_before_relu(draft: Draft, _options: Options) -> Draft:
    """Moves a Relu behind the MaxPool that alone reads it, where it has fewer elements to do."""
    nodes = list(draft.graph.nodes)
    makers = {node.outputs[0]: place for place, node in enumerate(nodes) if node.op_type == "Relu"}
    read = readers(nodes)
    outside = {*draft.roots, *draft.graph.outputs}
    values = FreshNames(definition.name for definition in value_definitions(draft.graph))
    for place, pool in enumerate(nodes):
        before = makers.get(pool.inputs[0]) if pool.op_type == "MaxPool" and len(pool.outputs) == 1 else None
        if before is None or not _has_full_windows(pool):
            continue
        relu = nodes[before]
        (between,), (output,) = relu.outputs, pool.outputs
        if len(read[between]) == 1 and between not in outside and relu.group == pool.group:
            pooled = values.fresh(pooled_name(output))
            nodes[before] = replace(pool, inputs=relu.inputs, outputs=(pooled,))
            nodes[place] = replace(relu, inputs=(pooled,), outputs=(output,))
    return draft if nodes == list(draft.graph.nodes) else draft.having(replace(draft.graph, nodes=tuple(nodes)))


def _has_full_windows(pool: Node) -> bool:
    """Whether no window can lie in the padding alone, whose place Relu would not take: one is wider than its pads."""
    attributes = pool.attributes
    return not attributes.get("ceil_mode") and set(as_ints(attributes.get("dilations", (1,)))) == {1}


# --- The pass that leaves out what nobody reads: dead code elimination ------------------------------------------------


def dead_code(draft: Draft, _options: Options) -> Draft:
    """Drops nodes that lead to no output and to no kept statistic.

    A BatchNormalization that no output depends on keeps no statistics: it would run for them alone.
    """
    alive = without_dead_code(draft.graph, draft.roots)
    values = set(made(alive.nodes))
    kept = {key: value for key, value in draft.statistics.items() if value in values}
    return replace(draft, statistics=MappingProxyType(kept)).having(
        replace(alive, outputs=draft.graph.outputs), draft.types
    )


def without_dead_code(graph: Graph, roots: Iterable[str]) -> Graph:
    """The graph with only those nodes, inputs and constants that lead to the values `roots`.

    Its nodes are in runnable order, and `roots` are its outputs. Parameters stay: the store keeps those that no node
    reads, too. Raises GraphRefusedError at a cycle.
    """
    outputs = tuple(dict.fromkeys(roots))
    nodes, alive = backward_slice(topological_order(graph.nodes), outputs)
    return replace(
        graph,
        inputs=tuple(input_ for input_ in graph.inputs if input_.name in alive),
        constants=tuple(constant for constant in graph.constants if constant.name in alive),
        nodes=nodes,
        outputs=outputs,
    )
