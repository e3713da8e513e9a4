"""The names of a graph's values, nodes and layers: unique, readable, the same each time.

What the user named comes first, then all else around it, so that a name that was asked for is never taken by one that
was made.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.records import Application, ConstantRecord, InputRecord, Label, NodeNames, ParameterRecord, Record, Scope
from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Subgraph
from weft_graph.names import all_nodes
from weft_graph.schema import name_at

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
