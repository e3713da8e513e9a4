"""Passes that put in what is exchanged with the store: rows, tables, statistics, gradients, and by which priority."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from weft_graph.attributes import as_int
from weft_graph.dimensions import DimensionError, product, total
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.ir import ONNX_DOMAIN, WEFT_DOMAIN, AttributeValue, Graph, Node, Parameter
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.names import TABLE_IDS, TABLE_INDEX, TABLE_ROWS, FreshNames, all_nodes, bodies_of, value_definitions
from weft_graph.passes.draft import Draft, Options, RowRead, Tables
from weft_graph.program import Role
from weft_graph.schema import schema_of
from weft_graph.topological import topological_order
from weft_graph.types import TensorType
from weft_graph.weft_domain import EMBEDDING, FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS, UNIQUE_ROWS

# --- The pass that makes a graph read its tables by rows, so that only those exist which a step names -----------------
#     y = Gather(T, ids)   becomes   rows_ids, index = UniqueRows(ids)
#                                    y = Gather(weft.rows/T, index)
#
# `weft.rows/T` stands in the place of T among the parameters: it is what is fetched, and what has a gradient.


_PADDING_INDEX = -1
"""What UniqueRows gives for an id that is padding."""


@dataclass(frozen=True, slots=True)
class RowReads:
    """A graph that reads its tables by rows. `rows` have to be fetched once `rows_ids` are there."""

    graph: Graph
    reads: tuple[RowRead, ...]


def row_reads(draft: Draft, _options: Options) -> Draft:
    """Reads tables by rows: only those whose ids the batch has."""
    found = read_by_rows(draft.graph, draft.tables.keys, draft.types)
    if not found.reads:
        return draft
    nodes = topological_order(found.graph.nodes)
    return replace(draft, reads=found.reads).having(replace(found.graph, nodes=nodes))


def read_by_rows(graph: Graph, tables: Collection[str], types: Mapping[str, TensorType]) -> RowReads:
    """The graph with each of the `tables` replaced by the rows of it that nodes name; parameters keep their places.

    Nothing in the graph may read a table otherwise. `types` has every value that the graph's nodes read. Nodes that
    read one table by the same ids share an index. A UniqueRows stands after all the nodes that were there.
    """
    uses = {
        parameter.name: _Uses(parameter.name, parameter.type.static_shape[0])
        for parameter in graph.parameters
        if parameter.name in tables
    }
    nodes = [uses[node.inputs[0]].rewritten(node) if _reads_one(node, uses) else node for node in graph.nodes]
    return RowReads(
        replace(
            graph,
            parameters=tuple(_rows_of(p, uses[p.name], types) if p.name in uses else p for p in graph.parameters),
            nodes=(*nodes, *(each.unique_rows() for each in uses.values())),
        ),
        tuple(RowRead(each.key, each.rows, each.rows_ids) for each in uses.values()),
    )


def _reads_one(node: Node, tables: Collection[str]) -> bool:
    return bool(node.inputs) and node.inputs[0] in tables


def _rows_of(parameter: Parameter, uses: _Uses, types: Mapping[str, TensorType]) -> Parameter:
    try:
        count = total(product(types[ids].shape) for ids, _, _ in uses.places)
    except DimensionError as error:
        message = f"parameter {parameter.name!r} is read by too many different ids: {error}"
        raise ShapeError(message, node=parameter.name) from None
    type_ = TensorType(parameter.type.dtype, (count, *parameter.type.shape[1:]))
    return replace(parameter, name=uses.rows, type=type_)


_Use = tuple[str, bool, int | None]
"""How ids are read: the value that holds them, whether those below 0 count from the end, the id that is padding."""


class _Uses:
    """The ids by which one table of `count` rows is read, each once."""

    def __init__(self, key: str, count: int) -> None:
        self.key = key
        self.count = count
        self.rows = TABLE_ROWS + key
        self.rows_ids = TABLE_IDS + key
        self.places: dict[_Use, int] = {}
        self.readers: list[str] = []
        """For each use the first node that reads so."""

    def rewritten(self, node: Node) -> Node:
        padding = node.attributes.get("padding_id")
        use = node.inputs[1], node.op_type != EMBEDDING, None if padding is None else as_int(padding)
        place = self.places.setdefault(use, len(self.places))
        if place == len(self.readers):
            self._check_room(node)
            self.readers.append(node.name)
        attributes = node.attributes if padding is None else {**node.attributes, "padding_id": _PADDING_INDEX}
        return replace(node, inputs=(self.rows, self._index(place)), attributes=attributes)

    def _check_room(self, node: Node) -> None:
        if len(self.places) >= PROGRAM_LIMITS.node_values:
            raise GraphRefusedError(
                f"node {node.name!r} ({node.op_type}): parameter {self.key!r} is read by more than "
                f"{PROGRAM_LIMITS.node_values - 1} different ids; join them, or set its row_sparse to false",
                node=node.name,
            )

    def _index(self, place: int) -> str:
        return f"{TABLE_INDEX}{self.key}:{place}"

    def unique_rows(self) -> Node:
        return Node(
            UNIQUE_ROWS,
            f"weft.unique_rows/{self.key}",
            tuple(ids for ids, _, _ in self.places),
            (self.rows_ids, *(self._index(place) for place in range(len(self.places)))),
            {
                "rows": self.count,
                "readers": tuple(self.readers),
                "wraps": tuple(int(wraps) for _, wraps, _ in self.places),
                "padded": tuple(int(padding is not None) for _, _, padding in self.places),
                "padding_ids": tuple(padding or 0 for _, _, padding in self.places),
            },
            WEFT_DOMAIN,
        )


# ----------------------------------------------------------------------------------------------------------------------
# The pass that finds which parameters are tables, read by rows alone, and why others that are read so are dense.
#
# What row-sparse gradients are elsewhere (sparse embeddings), decided from the readers of a parameter.


_COPYING: Final = frozenset({(ONNX_DOMAIN, "Identity"), (ONNX_DOMAIN, "Cast"), (ONNX_DOMAIN, "Transpose")})
"""Operators that give their whole input again, of the same rank."""


def tables(draft: Draft, options: Options) -> Draft:
    """Finds the parameters that are read by rows alone."""
    outputs = draft.outputs.values()
    found = find_tables(draft.graph.parameters, draft.graph.nodes, outputs, whole_rule=options.whole_rule)
    return replace(draft, tables=found)


def find_tables(
    parameters: Iterable[Parameter], nodes: Iterable[Node], outputs: Collection[str], *, whole_rule: str = ""
) -> Tables:
    """The parameters that are read by Gather along their first axis and by Embedding, and by nothing else.

    `nodes` are those that will run, in an order that can be run, `outputs` the values that the job asks for: what is
    asked for is needed whole. `whole_rule` is that of `Options`.
    """
    known = {parameter.name: parameter for parameter in parameters}
    copies = {name: name for name in known}
    by_rows: set[str] = set()
    whole: dict[str, str] = {}
    for node in nodes:
        if (node.domain, node.op_type) in _COPYING and node.inputs[0] in copies:
            copies[node.outputs[0]] = copies[node.inputs[0]]
        for place, name in enumerate(node.inputs):
            if name not in known:
                # Rows of a copy of the parameter: it is whole, and somebody meant a table.
                if name in copies and is_row_read(node, place, known[copies[name]].type.rank):
                    by_rows.add(copies[name])
                continue
            if is_row_read(node, place, known[name].type.rank):
                by_rows.add(name)
                continue
            reader = row_reader_inside(node, place, known[name].type.rank)
            if reader is not None:
                by_rows.add(name)
                whole.setdefault(name, f"node {reader!r} reads it in a body of node {node.name!r} ({node.op_type})")
            else:
                whole.setdefault(name, f"node {node.name!r} ({node.op_type}) reads it otherwise than by rows")
    dense: dict[str, str] = {}
    for name in (name for name in known if name in by_rows):
        if name in whole:
            dense[name] = whole[name]
        elif name in outputs:
            dense[name] = "the job asks for its value"
        elif because := _asked_to_be_dense(known[name], whole_rule):
            dense[name] = because
    keys = tuple(name for name in known if name in by_rows and name not in dense)
    return Tables(keys, MappingProxyType(dense))


def _asked_to_be_dense(parameter: Parameter, whole_rule: str) -> str:
    """Why what the parameter says of itself makes it no table; empty where it may be one."""
    if not parameter.row_sparse:
        return "row_sparse is false"
    if whole_rule and parameter.trainable and not parameter.lazy_update:
        return f"lazy_update is false, and {whole_rule}"
    return ""


def row_reader_inside(node: Node, place: int, rank: int) -> str | None:
    """The name of a node in one of the node's bodies that reads input `place`, which the bodies capture, by rows."""
    for body in bodies_of(node).values():
        captured = place - (len(node.inputs) - len(body.captured))
        name = body.captured[captured] if captured >= 0 else None
        for inner in body.nodes:
            for inner_place, read in enumerate(inner.inputs):
                if name is not None and read == name:
                    found = inner.name if is_row_read(inner, inner_place, rank) else None
                    found = found or row_reader_inside(inner, inner_place, rank)
                    if found is not None:
                        return found
    return None


def is_row_read(node: Node, place: int, rank: int) -> bool:
    """Whether input `place`, a value of that rank, is read by index along its first axis alone."""
    if place != 0:
        return False
    if (node.domain, node.op_type) == (ONNX_DOMAIN, "Gather"):
        return as_int(schema_of(node).attribute(node, "axis")) in {0, -rank}
    return (node.domain, node.op_type) == (WEFT_DOMAIN, EMBEDDING)


# --- The pass that finds where running statistics get their new values ------------------------------------------------


_STATISTICS = ((3, 1), (4, 2))
"""BatchNormalization's input that is a running statistic, and the output that is its new value."""


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """A graph whose BatchNormalization nodes name their new statistics, and for each parameter the new value's name."""

    graph: Graph
    updates: Mapping[str, str]


def statistics(draft: Draft, _options: Options) -> Draft:
    """Adds the new values of BatchNormalization's running statistics."""
    kept = keep_statistics(draft.graph, source=draft.source)
    return replace(draft, statistics=kept.updates).having(kept.graph) if kept.updates else draft


def keep_statistics(graph: Graph, *, source: Graph | None = None) -> RunningStatistics:
    """Makes each BatchNormalization in training mode name its running statistics, which its parameters are to get.

    Errors point into `source`, the user's graph; without it that is `graph` itself.

    Raises GraphRefusedError where a statistic is no parameter, is a trainable one, or both mean and variance of a node,
    and where a body would have one.
    """
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    names = FreshNames(definition.name for definition in value_definitions(graph))
    updates: dict[str, str] = {}
    writers: dict[str, str] = {}
    nodes: list[Node] = []
    places = {node.name: index for index, node in enumerate((source or graph).nodes)}
    _check_bodies((source or graph).nodes)
    for node in graph.nodes:
        if not _is_training(node):
            nodes.append(node)
            continue
        named = _naming_statistics(node, names)
        for read, written in _STATISTICS:
            key = node.inputs[read]
            _check_statistic(
                node, f"/nodes/{places[node.name]}/inputs/{read}", key, parameters.get(key), writers.get(key)
            )
            # A module that runs twice in a step updates its statistics twice, one after the other.
            named = replace(named, inputs=(*named.inputs[:read], updates.get(key, key), *named.inputs[read + 1 :]))
            updates[key] = named.outputs[written]
            writers[key] = node.name
        nodes.append(named)
    return RunningStatistics(replace(graph, nodes=tuple(nodes)), MappingProxyType(updates))


def _check_bodies(nodes: Iterable[Node]) -> None:
    """What a branch or a turn of a loop learns would have to leave the body, as often as that runs."""
    top = {id(node) for node in nodes}
    for node, pointer in all_nodes(nodes):
        if id(node) not in top and _is_training(node):
            raise GraphRefusedError(
                f"node {node.name!r} (BatchNormalization) is in a body, where it cannot keep running statistics; set "
                "its training_mode to 0, or move it out of the body",
                pointer=pointer,
                node=node.name,
            )


def _is_training(node: Node) -> bool:
    is_normalization = node.domain == ONNX_DOMAIN and node.op_type == "BatchNormalization"
    return is_normalization and node.attributes.get("training_mode", 0) != 0


def _naming_statistics(node: Node, names: FreshNames) -> Node:
    given = (*node.outputs, "", "")[:3]
    words = ("", "running_mean", "running_var")
    outputs = (name or names.fresh(f"weft.{word}/{node.name}") for name, word in zip(given, words, strict=True))
    return replace(node, outputs=tuple(outputs))


def _check_statistic(node: Node, pointer: str, key: str, parameter: Parameter | None, writer: str | None) -> None:
    if parameter is None:
        problem = "which is no parameter, so that its new value would be lost"
    elif parameter.trainable:
        problem = "which is a trainable parameter, and a running statistic has no gradient; make it not trainable"
    elif writer == node.name:
        problem = "which gets its new value from its variance already"
    else:
        return
    message = f"node {node.name!r} (BatchNormalization) keeps a running statistic in {key!r}, {problem}"
    raise GraphRefusedError(message, pointer=pointer, node=node.name)


def communication(draft: Draft, _options: Options) -> Draft:
    """Adds what is exchanged with shards: Fetch, FetchRows, Send, SendRows and, in training, the SendBarrier."""
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


# --- The pass that says how urgent each parameter is: the order in which the forward pass comes to need them ----------
# Priority-based parameter propagation (Jayarajan et al. 2019, P3), with the order of first use as the priority.


def urgency(draft: Draft, _options: Options) -> Draft:
    """Gives each parameter a priority: the sooner the forward pass reads it, the more urgent it is."""
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
