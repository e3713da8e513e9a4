"""The pass that inserts the nodes which talk to the store: a parameter server's pull and push, each key for itself.

A key is fetched directly before its first reader and sent directly behind what makes its gradient, so that both travel
while the rest computes (wait-free backpropagation; Zhang et al. 2017, Poseidon); there is no phase of either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from weft_graph.ir import WEFT_DOMAIN, AttributeValue, Node
from weft_graph.passes.draft import Draft, RowRead
from weft_graph.passes.options import Options
from weft_graph.program import Role
from weft_graph.topological import topological_order
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS


def communication(draft: Draft, _options: Options) -> Draft:
    """The draft with Fetch, FetchRows, Send, SendRows and, in training, the SendBarrier."""
    nodes = insert_row_fetches(draft.graph.nodes, draft.reads, draft.urgency)
    nodes = insert_fetches(nodes, draft.urgency, draft.outputs.values())
    if draft.role is Role.TRAIN:
        nodes = insert_sends(nodes, draft.sent, draft.urgency, draft.rows_ids)
    # A parameter is a value that a Fetch makes from here on.
    types = {**draft.types, **{p.name: p.type for p in (*draft.source.parameters, *draft.graph.parameters)}}
    return draft.having(replace(draft.graph, nodes=nodes), types)


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


def insert_row_fetches(
    nodes: Sequence[Node], reads: Sequence[RowRead], priorities: Mapping[str, int]
) -> tuple[Node, ...]:
    """The nodes with a FetchRows behind each table's UniqueRows, both of them as early as the ids exist.

    `nodes` are in runnable order and stay so. What makes ids of inputs and constants comes first of all, the most
    urgent table's before the others'; ids that depend on what is fetched are left where they are made.
    """
    makers = {output: node for node in nodes for output in node.outputs if output}
    late = _dependents(nodes, {*priorities, *(read.rows for read in reads)})
    done: set[str] = set()
    first: list[Node] = []
    for read in sorted(reads, key=lambda read: priorities[read.key]):
        unique = makers[read.rows_ids]
        first.extend([unique] if read.rows_ids in late else _with_ancestors(unique, makers, done))
        first.append(_fetch_rows(read, priorities[read.key]))
    taken = {node.name for node in first}
    # Of what can run the first in the list comes first: a UniqueRows whose ids are made late runs at once then.
    return topological_order((*first, *(node for node in nodes if node.name not in taken)))


def _dependents(nodes: Sequence[Node], fetched: Collection[str]) -> set[str]:
    """The values that depend on values of `fetched`, and these."""
    found = set(fetched)
    for node in nodes:
        if any(name in found for name in node.inputs):
            found.update(node.outputs)
    return found


def _with_ancestors(node: Node, makers: Mapping[str, Node], done: set[str]) -> Iterator[Node]:
    """The node and all that it needs, each after what it reads, less those that are `done`, to which they are added.

    Without recursion, for chains may be long.
    """
    stack = [(node, False)]
    while stack:
        current, is_open = stack.pop()
        if is_open:
            yield current
        elif current.name not in done:
            done.add(current.name)
            stack.append((current, True))
            stack.extend((makers[name], False) for name in reversed(current.inputs) if name in makers)


def insert_sends(
    nodes: Sequence[Node],
    sent: Mapping[str, str],
    priorities: Mapping[str, int],
    rows_ids: Mapping[str, str] | None = None,
) -> tuple[Node, ...]:
    """The nodes with a Send of each key directly after the node that makes its value, and a SendBarrier at the end.

    `sent` maps keys to the values that the store is to get; a key that is in `rows_ids`, too, is sent by these rows. A
    value that no node makes is there from the start, and so is its Send. The barrier lists the keys of `priorities`
    that nothing is sent for.
    """
    tables = rows_ids or {}
    keys_of: dict[str, list[str]] = {}
    for key, value in sent.items():
        keys_of.setdefault(value, []).append(key)
    made = {output for node in nodes for output in node.outputs}

    def send(key: str, value: str) -> Node:
        if key in tables:
            return _send_rows(key, tables[key], value, priorities[key])
        return _send(key, value, priorities[key])

    placed = [send(key, value) for key, value in sent.items() if value not in made]
    for node in nodes:
        placed.append(node)
        for output in node.outputs:
            placed.extend(send(key, output) for key in keys_of.get(output, ()))
    nothing = tuple(key for key in priorities if key not in sent)
    barrier = Node(SEND_BARRIER, "weft.send_barrier", (), (), {"keys": nothing}, WEFT_DOMAIN)
    return (*placed, barrier)


def _fetch(key: str, priority: int) -> Node:
    return Node(FETCH, f"weft.fetch/{key}", (), (key,), {"key": key, "priority": priority}, WEFT_DOMAIN)


def _fetch_rows(read: RowRead, priority: int) -> Node:
    attributes: dict[str, AttributeValue] = {"key": read.key, "priority": priority}
    return Node(FETCH_ROWS, f"weft.fetch_rows/{read.key}", (read.rows_ids,), (read.rows,), attributes, WEFT_DOMAIN)


def _send(key: str, value: str, priority: int) -> Node:
    return Node(SEND, f"weft.send/{key}", (value,), (), {"key": key, "priority": priority}, WEFT_DOMAIN)


def _send_rows(key: str, rows_ids: str, value: str, priority: int) -> Node:
    attributes: dict[str, AttributeValue] = {"key": key, "priority": priority}
    return Node(SEND_ROWS, f"weft.send_rows/{key}", (rows_ids, value), (), attributes, WEFT_DOMAIN)
