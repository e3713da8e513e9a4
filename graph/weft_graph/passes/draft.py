"""A program while it is made: what passes are told, read and change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from weft_graph.infer import infer
from weft_graph.ir import Graph, Node
from weft_graph.program import Program, Role
from weft_graph.types import TensorType

# --- What a job may ask of the converter ------------------------------------------------------------------------------


class Recompute(StrEnum):
    """How much is computed again: nothing, what is cheap, or the forward part from some checkpoints on."""

    OFF = "off"
    CHEAP = "cheap"
    SEGMENTS = "segments"


class Precision(StrEnum):
    """In what products, and what follows them element by element, are computed."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the passes; each pass reads those that are about it."""

    placement: Mapping[str, str] = field(default_factory=dict)
    """The place of each group of nodes: see `weft_graph.passes.placement`. Without any, all is on one place."""
    fusion: bool = True
    """Whether chains of pointwise nodes become one node each."""
    recompute: Recompute = Recompute.OFF
    """Which forward values are computed again in the backward part instead of being held."""
    precision: Precision = Precision.FLOAT32
    """What float32 values are computed in: see `weft_graph.passes.precision`."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """What named dimensions are taken as where sizes are compared; the programs stay good for any."""
    whole_rule: str = ""
    """Why the job's rule needs keys whole, in words, if it does: a trained table whose `lazy_update` is False is dense
    then."""


@dataclass(frozen=True, slots=True)
class Tables:
    """`keys` are the tables, in the order of the parameters. `dense` has a reason for each parameter that some node
    reads by rows, as it is or a copy of it, and that is no table."""

    keys: tuple[str, ...] = ()
    dense: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowRead:
    """A table as a program reads it: `rows` is the value of its rows, `rows_ids` that of their numbers."""

    key: str
    rows: str
    rows_ids: str


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that is known of a program between two passes.

    `role` is None in the passes that all programs share. Nodes of `graph` are in runnable order. `graph.parameters` are
    those that nodes read, with a table's rows in the place of the table; `source` is the user's graph, which errors
    point into. `types` has every value of the graph.
    """

    role: Role | None
    source: Graph
    graph: Graph
    types: Mapping[str, TensorType]
    outputs: Mapping[str, str]
    """The job's names (`loss`, metrics) and the values that they are."""
    statistics: Mapping[str, str] = field(default_factory=dict)
    """Keys of running statistics and the values that they become."""
    gradients: Mapping[str, str] = field(default_factory=dict)
    """Keys of trainable parameters and the values that are their gradients."""
    urgency: Mapping[str, int] = field(default_factory=dict)
    """Every key's priority, 0 the most urgent."""
    tables: Tables = Tables()
    reads: tuple[RowRead, ...] = ()

    @property
    def sent(self) -> Mapping[str, str]:
        """What the store gets: keys and values. An evaluation sends nothing."""
        return {**self.gradients, **self.statistics} if self.role is Role.TRAIN else {}

    @property
    def rows_ids(self) -> Mapping[str, str]:
        """Each table's value that numbers its rows."""
        return {read.key: read.rows_ids for read in self.reads}

    @property
    def roots(self) -> tuple[str, ...]:
        """The values that somebody outside of the graph waits for, each once."""
        return tuple(dict.fromkeys((*self.outputs.values(), *self.sent.values(), *self.rows_ids.values())))

    def having(self, graph: Graph, types: Mapping[str, TensorType] | None = None) -> Draft:
        """The same with another graph. Without `types` they are inferred anew."""
        return replace(self, graph=graph, types=infer(graph) if types is None else types)

    def renamed(self, values: Mapping[str, str]) -> Draft:
        """The same where each value of `values` is another one's name now, for whoever waits for it outside."""

        def new(names: Mapping[str, str]) -> Mapping[str, str]:
            return MappingProxyType({name: values.get(value, value) for name, value in names.items()})

        return replace(
            self,
            outputs=new(self.outputs),
            statistics=new(self.statistics),
            gradients=new(self.gradients),
            reads=tuple(replace(read, rows_ids=values.get(read.rows_ids, read.rows_ids)) for read in self.reads),
        )

    def program(self) -> Program:
        """The finished program, with the types of its own values alone."""
        assert self.role is not None, "a program has a role"
        values = (
            *(i.name for i in self.graph.inputs),
            *(c.name for c in self.graph.constants),
            *made(self.graph.nodes),
        )
        return Program(
            role=self.role,
            inputs=self.graph.inputs,
            constants=self.graph.constants,
            nodes=self.graph.nodes,
            outputs=MappingProxyType(dict(self.outputs)),
            types=MappingProxyType({name: self.types[name] for name in values}),
        )


def made(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The values that nodes make, in order; those left out are skipped."""
    return tuple(name for node in nodes for name in node.outputs if name)


def readers(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Who reads each value, in order, a node once for each input that the value is."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.inputs:
            if name:
                found.setdefault(name, []).append(node)
    return found
