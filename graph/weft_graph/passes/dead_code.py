"""The pass that leaves out what nobody reads: dead code elimination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from weft_graph.ir import Graph
from weft_graph.passes.draft import Draft, made
from weft_graph.passes.options import Options
from weft_graph.slices import backward_slice
from weft_graph.topological import topological_order


def dead_code(draft: Draft, _options: Options) -> Draft:
    """The draft with what leads to its roots, and statistics of what is left alone.

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
