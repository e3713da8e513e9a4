"""The two parts of a training step: forward, and backward, where the loss's scale flows back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft_graph.ir import Node
from weft_graph.names import AGAIN
from weft_graph.program import LOSS_SCALE


def scaled_nodes(nodes: Iterable[Node]) -> frozenset[str]:
    """Names of the nodes, in runnable order, that depend on the loss's scale: what cannot run before it is there."""
    scaled, found = {LOSS_SCALE}, set()
    for node in nodes:
        if any(name in scaled for name in node.inputs):
            found.add(node.name)
            scaled.update(filter(None, node.outputs))
    return frozenset(found)


def parts_of(nodes: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
    """Nodes in the order they run in, as (forward, backward); an evaluation's are all forward.

    The backward part begins with the first node that depends on the loss's scale, or is computed again for one that
    does. What runs later is in it too: copies of forward nodes, and a user's metric for which there was time.
    """
    scaled = scaled_nodes(nodes)
    first = (index for index, node in enumerate(nodes) if node.name in scaled or node.name.startswith(AGAIN))
    begin = next(first, len(nodes))
    return nodes[:begin], nodes[begin:]
