"""What leads to values: a backward slice of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft_graph.ir import Node


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
