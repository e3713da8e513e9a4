"""From expressions to a graph: what the outputs need, in an order that can be run, each with its name.

Names depend on nothing but the outputs: the walk goes depth first, inputs before the node, in the order in which they
are written. What a user named keeps that name, or collecting raises; all else is called after its operator or layer,
and the second of a kind gets `_2`. So a graph cut from a larger one may number unnamed layers in another way: name
layers, or cut the collected graph (`weft.cut`), where names must outlive the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.records import (
    Application,
    Array,
    ConstantRecord,
    InputRecord,
    Label,
    NodeNames,
    ParameterRecord,
    Record,
    Scope,
    Value,
)
from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Constant, Graph, Input, Node, Parameter, Subgraph
from weft_graph.names import all_nodes
from weft_graph.schema import name_at
from weft_graph.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class Collected:
    """A graph, the names of its outputs in the order in which they were asked for, and each record's values' names."""

    graph: Graph
    outputs: tuple[str, ...]
    names: dict[Record, tuple[str, ...]]
    values: dict[str, Array] = field(default_factory=dict)
    """First values that parameters bring beside the graph."""


def collect(outputs: Sequence[Value], name: str) -> Collected:
    """The graph of these outputs. One that is asked for twice is one output of the graph."""
    if not outputs:
        raise GraphRefusedError("a graph has at least one output")
    records = tuple(walk(outputs))
    collector = _Collector(Names(records))
    for record in records:
        collector.add(record)
    asked = tuple(collector.value(output) for output in outputs)
    graph = Graph(
        name=name,
        inputs=tuple(collector.inputs),
        parameters=tuple(collector.parameters),
        nodes=tuple(collector.nodes),
        outputs=tuple(dict.fromkeys(asked)),
        constants=tuple(collector.constants),
    )
    return Collected(graph, asked, collector.names, collector.values)


def walk(outputs: Sequence[Value]) -> Iterator[Record]:
    """Every record that the outputs need, once, inputs before what reads them. Depth is bounded by memory alone."""
    seen: set[int] = set()
    for output in outputs:
        stack: list[tuple[Record, bool]] = [(output.record, False)]
        while stack:
            record, inputs_done = stack.pop()
            if inputs_done:
                yield record
            elif id(record) not in seen:
                seen.add(id(record))
                stack.append((record, True))
                if isinstance(record, Application):
                    stack.extend((i.record, False) for i in reversed(record.inputs) if i is not None)


@dataclass(slots=True)
class _Collector:
    """Gathers a graph's records. `names` has an entry for every record that was added, in the walk's order."""

    given: Names
    inputs: list[Input] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    names: dict[Record, tuple[str, ...]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        names = self.given.of(record)
        self.names[record] = names
        match record:
            case InputRecord():
                self.inputs.append(Input(names[0], record.types[0]))
            case ParameterRecord():
                type_ = record.types[0]
                self.parameters.append(
                    Parameter(
                        names[0], type_, record.initializer, record.trainable, record.row_sparse, record.lazy_update
                    )
                )
                if record.value is not None:
                    self.values[names[0]] = record.value
            case ConstantRecord():
                self.constants.append(Constant(names[0], record.array))
            case Application():
                inputs = tuple("" if i is None else self.value(i) for i in record.inputs)
                attributes, schema = dict(record.attributes), record.schema
                own = record.names or NodeNames(names[0], names)
                self.nodes.append(
                    Node(schema.op_type, own.node, inputs, own.values, attributes, schema.domain, own.group)
                )

    def value(self, value: Value) -> str:
        return self.names[value.record][value.index]


_WORDS: dict[type[object], str] = {
    InputRecord: "an input",
    ParameterRecord: "a parameter",
    ConstantRecord: "a constant",
    Application: "a node",
    Scope: "a layer",
}


class Names:
    """Names for the records of one walk, which has inputs before what reads them.

    Invariant: `_taken` maps each name to what bears it, and no two records or layers bear one name. A layer's first
    node takes over the layer's own name. `_numbers` has the last number that each stem was given.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._taken: dict[str, Record | Scope] = {}
        self._numbers: dict[str, int] = {}
        self._scopes: dict[Scope, str] = {}
        self._heads: dict[Record, str] = {}
        self._values: dict[Record, tuple[str, ...]] = {}
        labelled = [(record, record.label) for record in records if record.label is not None]
        for record, label in labelled:
            if isinstance(record, Application) and record.names is not None:
                self._take_read(record, record.names)
            else:
                self._take_given(record, label)
        for record in records:
            if isinstance(record, Application) and record.names is not None:
                self._keep_from_others(record, record.names)
        for record, label in labelled:
            if record not in self._heads:
                self._heads[record] = self._made(record, label)
        for record in records:
            self._name_values(record)
        for record in records:
            if not self._values[record]:
                self._values[record] = (self._free("constant", record),)  # an output that no node reads

    def of(self, record: Record) -> tuple[str, ...]:
        """The names of the record's values: one for each output that has one. A node's first is also its own."""
        return self._values[record]

    def _take_given(self, record: Record, label: Label) -> None:
        if label.given:
            self._heads[record] = self._take(_joined(self._path(label.scope), label.local), record)
        elif label.scope is not None and _all_given(label.scope):
            self._path(label.scope)

    def _take_read(self, record: Application, names: NodeNames) -> None:
        """All names of values that were read stay."""
        self._values[record] = tuple(self._take(name, record) if name else "" for name in names.values)
        self._heads[record] = names.node

    def _keep_from_others(self, record: Application, names: NodeNames) -> None:
        """Names of read nodes, and of those in their bodies, which no node that is named here may have."""
        self._taken.setdefault(names.node, record)
        for body in record.attributes.values():
            if isinstance(body, Subgraph):
                for node, _ in all_nodes(body.nodes):
                    self._taken.setdefault(node.name, record)

    def _take(self, name: str, bearer: Record | Scope) -> str:
        other = self._taken.setdefault(name, bearer)
        if other is not bearer:
            raise GraphRefusedError(
                f"{_WORDS[type(other)]} and {_WORDS[type(bearer)]} of this graph are both named {name!r}; "
                "use one of them in both places, or give two names",
                node=name,
            )
        return name

    def _free(self, stem: str, bearer: Record | Scope) -> str:
        """`stem`, or `stem` with the first number from 2 on that makes it free."""
        name, number = stem, self._numbers.get(stem, 1)
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._numbers[stem] = number
        self._taken[name] = bearer
        return name

    def _path(self, scope: Scope | None) -> str:
        if scope is None:
            return ""
        if scope not in self._scopes:
            wanted = _joined(self._path(scope.parent), scope.name)
            if scope.given:
                path = self._take(wanted, scope)
            else:
                path = self._free(scope.fallback if wanted in self._taken and scope.fallback else wanted, scope)
            self._scopes[scope] = path
        return self._scopes[scope]

    def _made(self, record: Record, label: Label) -> str:
        path = self._path(label.scope)
        if not label.local and self._taken.get(path) is label.scope:
            self._taken[path] = record
            return path
        return self._free(_joined(path, label.local), record)

    def _name_values(self, record: Record) -> None:
        """Names a node's values, and the constants without a wish for a name that it is the first to read."""
        if record not in self._heads:
            self._values.setdefault(record, ())
            return
        if record in self._values:
            return
        head = self._heads[record]
        if not isinstance(record, Application):
            self._values[record] = (head,)
            return
        formals = record.schema.outputs
        rest = (self._free(_joined(head, name_at(formals, place)), record) for place in range(1, len(record.types)))
        self._values[record] = (head, *rest)
        self._name_constants(record, head)

    def _name_constants(self, node: Application, head: str) -> None:
        formals = node.schema.inputs
        for place, operand in enumerate(node.inputs):
            if operand is not None and not self._values[operand.record]:
                formal = formals[min(place, len(formals) - 1)]
                self._values[operand.record] = (self._free(_joined(head, formal.name), operand.record),)


def _all_given(scope: Scope) -> bool:
    return scope.given and (scope.parent is None or _all_given(scope.parent))


def _joined(path: str, local: str) -> str:
    return f"{path}.{local}" if path and local else path or local


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
            near = did_you_mean(value, (*graph.outputs, *makers, *given))
            near = near or f"; the last of its values are {', '.join(map(repr, list(makers)[:-9:-1]))}"
            raise GraphRefusedError(f"graph {graph.name!r} has no value {value!r}{near}", node=value)
    return Graph(
        name=name or graph.name,
        inputs=tuple(i for i in graph.inputs if i.name in needed),
        parameters=tuple(p for p in graph.parameters if p.name in needed),
        nodes=tuple(node for place, node in enumerate(graph.nodes) if place in nodes),
        outputs=tuple(dict.fromkeys(outputs)),
        constants=tuple(c for c in graph.constants if c.name in needed),
    )
