"""The pass that makes a graph read its tables by rows, so that only those exist which a step names.

    y = Gather(T, ids)   becomes   rows_ids, index = UniqueRows(ids)
                                   y = Gather(weft.rows/T, index)

`weft.rows/T` stands in the place of T among the parameters: it is what is fetched, and what has a gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import DimensionError, product, total
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.ir import WEFT_DOMAIN, Graph, Node, Parameter
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.names import TABLE_IDS, TABLE_INDEX, TABLE_ROWS
from weft_graph.passes.draft import Draft, RowRead
from weft_graph.passes.options import Options
from weft_graph.topological import topological_order
from weft_graph.types import TensorType
from weft_graph.weft_domain import EMBEDDING, UNIQUE_ROWS

_PADDING_INDEX = -1
"""What UniqueRows gives for an id that is padding."""


@dataclass(frozen=True, slots=True)
class RowReads:
    """A graph that reads its tables by rows. `rows` have to be fetched once `rows_ids` are there."""

    graph: Graph
    reads: tuple[RowRead, ...]


def row_reads(draft: Draft, _options: Options) -> Draft:
    """The draft with each of its tables read by rows."""
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
