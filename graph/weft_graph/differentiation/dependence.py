"""Which values depend on which, through floats: forwards from sources, backwards from results, and around loops."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from weft_graph.ir import Node
from weft_graph.schema import schema_of
from weft_graph.shapes.flow import flat

IsFloat = Callable[[str], bool]


def lead_from(
    nodes: Sequence[Node], sources: Mapping[str, str], again: Mapping[str, Sequence[str]], is_float: IsFloat
) -> dict[str, str]:
    """For each float value that depends on `sources`, what `sources` says of one that it depends on.

    `again` has, for an output of a body, the inputs that get it at the next turn. Nothing leads through an operator of
    steps.
    """
    readers: defaultdict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        if schema_of(node).gradient is not flat:
            for name in node.inputs:
                readers[name].append(index)
    leads: dict[str, str] = {}
    todo, done = list[int](), set[int]()

    def found(first: str, source: str) -> None:
        names = [first]
        while names:
            name = names.pop()
            if name in leads:
                continue
            leads[name] = source
            names.extend(again.get(name, ()))
            for index in readers[name]:
                heapq.heappush(todo, index)

    for name, source in sources.items():
        found(name, source)
    # In the order of the nodes, so that of several sources that of the first input is the one that is named.
    while todo:
        index = heapq.heappop(todo)
        if index in done:
            continue
        done.add(index)
        source = next(leads[name] for name in nodes[index].inputs if name in leads)
        for output in nodes[index].outputs:
            if output and is_float(output):
                found(output, source)
    return leads


def reached_from(
    nodes: Sequence[Node], ends: Iterable[str], before: Mapping[str, str], leads: Mapping[str, str]
) -> set[str]:
    """Of the values that lead to one of `ends`, those in `leads`: where gradients may flow.

    `before` has, for an input of a body, the output that it gets from the turn before.
    """
    makers = {name: node for node in nodes for name in node.outputs if name and schema_of(node).gradient is not flat}
    todo = [name for name in ends if name in leads]
    found = set(todo)
    while todo:
        name = todo.pop()
        others = [] if name not in makers else list(makers[name].inputs)
        if name in before:
            others.append(before[name])
        for other in others:
            if other in leads and other not in found:
                found.add(other)
                todo.append(other)
    return found
