"""Nodes in an order in which they can run, and those that some outputs need."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Node

_CYCLE_NODES_SHOWN = 10


def topological_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes so that each comes after those whose outputs it reads. Raises GraphRefusedError naming a cycle.

    Stable: of the nodes that can run, the first in the given order comes first, so a valid order stays as it is. A
    value that no node gives is taken to be there from the start (A. B. Kahn, 1962, with a heap for the stability).
    """
    producers = _producers(nodes)
    waits = [len(_predecessors(node, producers)) for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for producer in _predecessors(node, producers):
            readers[producer].append(index)
    ready = [index for index, count in enumerate(waits) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise _cycle_error(nodes, producers, (index for index, count in enumerate(waits) if count))
    return tuple(nodes[index] for index in order)


def _producers(nodes: Sequence[Node]) -> dict[str, int]:
    return {output: index for index, node in enumerate(nodes) for output in node.outputs if output}


def _predecessors(node: Node, producers: dict[str, int]) -> list[int]:
    """Nodes whose outputs the node reads, each once, in the order of its inputs."""
    return list(dict.fromkeys(producers[name] for name in node.inputs if name in producers))


def _cycle_error(nodes: Sequence[Node], producers: dict[str, int], stuck: Iterable[int]) -> GraphRefusedError:
    """Walks back from a node that cannot run; each such node has a predecessor that cannot run either."""
    unordered = set(stuck)
    path: list[int] = []
    place: dict[int, int] = {}
    index = min(unordered)
    while index not in place:
        place[index] = len(path)
        path.append(index)
        index = next(p for p in _predecessors(nodes[index], producers) if p in unordered)
    cycle = path[place[index] :][::-1]
    start = cycle.index(min(cycle))
    cycle = cycle[start:] + cycle[:start]
    names = [repr(nodes[i].name) for i in (*cycle[:_CYCLE_NODES_SHOWN], cycle[0])]
    if len(cycle) > _CYCLE_NODES_SHOWN:
        names.insert(-1, f"... {len(cycle) - _CYCLE_NODES_SHOWN} more")
    return GraphRefusedError(
        f"nodes read each other in a cycle: {' -> '.join(names)}",
        pointer=f"/nodes/{cycle[0]}",
        node=nodes[cycle[0]].name,
    )


# --- What leads to values: a backward slice of nodes ------------------------------------------------------------------


def backward_slice(nodes: Sequence[Node], values: Iterable[str]) -> tuple[tuple[Node, ...], set[str]]:
    """The nodes that lead to `values`, and those values with all that these nodes read.

    `nodes` are in runnable order, and so is what comes back. Inputs and outputs that are left out lead nowhere.
    """
    alive, kept = set(values), []
    for node in reversed(nodes):
        if any(name in alive for name in node.outputs if name):
            alive.update(name for name in node.inputs if name)
            kept.append(node)
    return tuple(reversed(kept)), alive
