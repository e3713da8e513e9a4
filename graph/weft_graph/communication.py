"""The pass that inserts the nodes which talk to the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.weft_domain import FETCH, SEND, SEND_BARRIER


def insert_fetches(
    nodes: Sequence[Node], priorities: Mapping[str, int], outputs: Collection[str] = ()
) -> tuple[Node, ...]:
    """The nodes with a Fetch of each parameter directly before its first reader.

    `nodes` are in runnable order and stay so. `priorities` has every parameter; one that no node reads is not fetched,
    unless it is among the `outputs`: then it is fetched at the end.
    """
    fetched: set[str] = set()
    placed: list[Node] = []

    def fetch(names: Collection[str]) -> None:
        for name in names:
            if name in priorities and name not in fetched:
                fetched.add(name)
                placed.append(_fetch(name, priorities[name]))

    for node in nodes:
        fetch(node.inputs)
        placed.append(node)
    fetch(outputs)
    return tuple(placed)


def insert_sends(nodes: Sequence[Node], sent: Mapping[str, str], priorities: Mapping[str, int]) -> tuple[Node, ...]:
    """The nodes with a Send of each key directly after the node that makes its value, and a SendBarrier at the end.

    `sent` maps keys to the values that the store is to get. A value that no node makes is there from the start, and so
    is its Send. The barrier lists the keys of `priorities` that nothing is sent for.
    """
    keys_of: dict[str, list[str]] = {}
    for key, value in sent.items():
        keys_of.setdefault(value, []).append(key)
    made = {output for node in nodes for output in node.outputs}
    placed = [_send(key, value, priorities[key]) for key, value in sent.items() if value not in made]
    for node in nodes:
        placed.append(node)
        for output in node.outputs:
            placed.extend(_send(key, output, priorities[key]) for key in keys_of.get(output, ()))
    nothing = tuple(key for key in priorities if key not in sent)
    barrier = Node(SEND_BARRIER, "weft.send_barrier", (), (), {"keys": nothing}, WEFT_DOMAIN)
    return (*placed, barrier)


def _fetch(key: str, priority: int) -> Node:
    return Node(FETCH, f"weft.fetch/{key}", (), (key,), {"key": key, "priority": priority}, WEFT_DOMAIN)


def _send(key: str, value: str, priority: int) -> Node:
    return Node(SEND, f"weft.send/{key}", (value,), (), {"key": key, "priority": priority}, WEFT_DOMAIN)
