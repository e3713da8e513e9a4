"""Cutting a graph at some of its values: what is needed for them and nothing more, under the same names."""

from __future__ import annotations

from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Graph


def cut(graph: Graph, *outputs: str, name: str | None = None) -> Graph:
    """The part of `graph` that computes the values `outputs`: the graph to serve, say, of one that was trained.

    Every name stays, so that parameters that were trained fit. Raises GraphRefusedError for a name that is no value.
    """
    if not outputs:
        raise GraphRefusedError("a graph has at least one output; name the values to cut at")
    makers = {value: place for place, node in enumerate(graph.nodes) for value in node.outputs if value}
    given = {i.name for i in graph.inputs} | {p.name for p in graph.parameters} | {c.name for c in graph.constants}
    needed: set[str] = set()
    nodes: set[int] = set()
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if value in needed:
            continue
        needed.add(value)
        if value in makers:
            nodes.add(makers[value])
            waiting.extend(i for i in graph.nodes[makers[value]].inputs if i)
        elif value not in given:
            raise GraphRefusedError(f"graph {graph.name!r} has no value {value!r}", node=value)
    return Graph(
        name=name or graph.name,
        inputs=tuple(i for i in graph.inputs if i.name in needed),
        parameters=tuple(p for p in graph.parameters if p.name in needed),
        nodes=tuple(node for place, node in enumerate(graph.nodes) if place in nodes),
        outputs=tuple(dict.fromkeys(outputs)),
        constants=tuple(c for c in graph.constants if c.name in needed),
    )
