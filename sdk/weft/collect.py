"""From expressions to a graph: what the outputs need, in an order that can be run, each with its name.

Names depend on nothing but the outputs: the walk goes depth first, inputs before the node, in the order in which they
are written. What a user named keeps that name, or collecting raises; all else is called after its operator or layer,
and the second of a kind gets `_2`. So a graph cut from a larger one may number unnamed layers in another way: name
layers, or cut the collected graph (`weft.cut`), where names must outlive the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.naming import Names
from weft.records import Application, Array, ConstantRecord, InputRecord, NodeNames, ParameterRecord, Record, Value
from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Constant, Graph, Input, Node, Parameter


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
