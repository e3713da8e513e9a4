"""How urgent each parameter is: the order in which the forward pass comes to need them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft_graph.ir import Node


def priorities(nodes: Iterable[Node], parameters: Sequence[str]) -> dict[str, int]:
    """A number for each parameter, 0 the most urgent, by first use in `nodes`, which are in the order they run in.

    The next step waits for its first layer before it waits for its last, while the backward pass ends with the
    first layer: without priorities, what is needed first would travel last. Parameters that no node reads come last.
    """
    known = set(parameters)
    used = dict.fromkeys(name for node in nodes for name in node.inputs if name in known)
    order = [*used, *(name for name in parameters if name not in used)]
    return {name: priority for priority, name in enumerate(order)}
