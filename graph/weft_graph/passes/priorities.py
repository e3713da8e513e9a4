"""The pass that says how urgent each parameter is: the order in which the forward pass comes to need them.

Priority-based parameter propagation (Jayarajan et al. 2019, P3), with the order of first use as the priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

from weft_graph.ir import Node
from weft_graph.passes.draft import Draft
from weft_graph.passes.options import Options


def urgency(draft: Draft, _options: Options) -> Draft:
    """The draft with a priority for every key."""
    keys = [parameter.name for parameter in draft.source.parameters]
    return replace(draft, urgency=MappingProxyType(priorities(draft.graph.nodes, keys)))


def priorities(nodes: Iterable[Node], parameters: Sequence[str]) -> dict[str, int]:
    """A number for each parameter, 0 the most urgent, by first use in `nodes`, which are in the order they run in.

    The next step waits for its first layer before it waits for its last, while the backward pass ends with the
    first layer: without priorities, what is needed first would travel last. Parameters that no node reads come last.
    """
    known = set(parameters)
    used = dict.fromkeys(name for node in nodes for name in node.inputs if name in known)
    order = [*used, *(name for name in parameters if name not in used)]
    return {name: priority for priority, name in enumerate(order)}
