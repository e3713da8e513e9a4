"""The converter: from a user's graph to the programs that workers run and the keys that shards keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weft_graph.check import check
from weft_graph.differentiate import differentiate
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Graph, Node
from weft_graph.passes.communication import insert_fetches, insert_row_fetches, insert_sends
from weft_graph.passes.dead_code import without_dead_code
from weft_graph.passes.inference_mode import to_inference
from weft_graph.passes.priorities import priorities
from weft_graph.passes.row_reads import RowReads, read_by_rows
from weft_graph.passes.statistics import keep_statistics
from weft_graph.passes.tables import Tables, find_tables
from weft_graph.program import KeyPlan, Program, Programs, Role, Update
from weft_graph.types import TensorType

LOSS = "loss"
"""The name under which every program gives the loss."""


def convert(graph: Graph, *, loss: str, metrics: Mapping[str, str]) -> Programs:
    """The programs of a graph whose output `loss` is made small, and its keys in the order of the parameters.

    Both programs have the outputs `loss` and, by their names, `metrics`. Raises GraphRefusedError, or one of its kinds,
    where the graph is not legal, cannot be differentiated, or where loss or metrics are no scalar outputs of it.
    """
    check(graph)
    types = infer(graph)
    outputs = _outputs(graph, types, loss, metrics)
    order = without_dead_code(graph, outputs.values()).nodes
    urgency = priorities(order, [parameter.name for parameter in graph.parameters])
    tables = find_tables(graph.parameters, order, outputs.values())
    converter = _Converter(graph, types, outputs, urgency, tables)
    return Programs(train=converter.train(), evaluate=converter.evaluate(), keys=converter.keys())


def _outputs(graph: Graph, types: Mapping[str, TensorType], loss: str, metrics: Mapping[str, str]) -> Mapping[str, str]:
    if metrics.get(LOSS, loss) != loss:
        raise GraphRefusedError(f"metric {LOSS!r} is always the loss, {loss!r}; it cannot be {metrics[LOSS]!r}")
    outputs = {LOSS: loss, **metrics}
    for name, value in outputs.items():
        what = "loss" if name == LOSS else f"metric {name!r}"
        if value not in graph.outputs:
            has = ", ".join(map(repr, graph.outputs))
            raise GraphRefusedError(f"{what} is {value!r}, which is no output of the graph; it has {has}", node=value)
        if types[value].rank:
            raise ShapeError(f"{what} is {value!r}, which is {types[value]}; it must be a scalar", node=value)
    return MappingProxyType(outputs)


@dataclass(frozen=True, slots=True)
class _Converter:
    """What both programs are made from: the user's graph, its types, and what was decided about its parameters."""

    graph: Graph
    types: Mapping[str, TensorType]
    outputs: Mapping[str, str]
    urgency: Mapping[str, int]
    tables: Tables

    def keys(self) -> tuple[KeyPlan, ...]:
        return tuple(
            KeyPlan(
                key=parameter.name,
                type=parameter.type,
                initializer=parameter.initializer,
                update=Update.RULE if parameter.trainable else Update.MEAN,
                priority=self.urgency[parameter.name],
                rows=parameter.name in self.tables.keys,
                dense_because=self.tables.dense.get(parameter.name, ""),
            )
            for parameter in self.graph.parameters
        )

    def train(self) -> Program:
        """Forward, backward and communication.

        A BatchNormalization that no output depends on sends no statistics: it would run for them alone.
        """
        statistics = keep_statistics(self.graph)
        alive = without_dead_code(statistics.graph, self.outputs.values())
        made = {name for node in alive.nodes for name in node.outputs}
        by_rows = read_by_rows(alive, self.tables.keys, self.types)
        derived = differentiate(by_rows.graph, self.outputs[LOSS], source=self.graph)
        key_of = {read.rows: read.key for read in by_rows.reads}
        sent = {key_of.get(name, name): gradient for name, gradient in derived.gradients.items()}
        sent.update((key, value) for key, value in statistics.updates.items() if value in made)
        cut = without_dead_code(derived.graph, (*self.outputs.values(), *sent.values(), *_rows_ids(by_rows).values()))
        nodes = insert_sends(self._fetching(cut, by_rows), sent, self.urgency, _rows_ids(by_rows))
        return _program(Role.TRAIN, cut, nodes, self.outputs, derived.types)

    def evaluate(self) -> Program:
        cut = without_dead_code(to_inference(self.graph), self.outputs.values())
        by_rows = read_by_rows(cut, self.tables.keys, self.types)
        ordered = without_dead_code(by_rows.graph, self.outputs.values())
        nodes = self._fetching(ordered, by_rows)
        return _program(Role.EVALUATE, ordered, nodes, self.outputs, infer(by_rows.graph))

    def _fetching(self, graph: Graph, by_rows: RowReads) -> tuple[Node, ...]:
        nodes = insert_row_fetches(graph.nodes, by_rows.reads, self.urgency)
        return insert_fetches(nodes, self.urgency, self.outputs.values())


def _rows_ids(by_rows: RowReads) -> dict[str, str]:
    return {read.key: read.rows_ids for read in by_rows.reads}


def _program(
    role: Role,
    graph: Graph,
    nodes: tuple[Node, ...],
    outputs: Mapping[str, str],
    types: Mapping[str, TensorType],
) -> Program:
    """A program whose types are those of its own values alone."""
    values = [
        *(input_.name for input_ in graph.inputs),
        *(constant.name for constant in graph.constants),
        *(name for node in nodes for name in node.outputs if name),
    ]
    return Program(
        role=role,
        inputs=graph.inputs,
        constants=graph.constants,
        nodes=nodes,
        outputs=MappingProxyType(dict(outputs)),
        types=MappingProxyType({name: types[name] for name in values}),
    )
