"""How long each value's memory is held, which values share one memory, and which may take another's place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft_graph.ir import Node
from weft_graph.layout.strides import NO_VIEW, Sizes, in_rows, made, reshaped, same_places
from weft_graph.schema import MemoryOrder, OpSchema, Strides, schema_of
from weft_graph.types import TensorType
from weft_graph.weft_domain import is_communication


@dataclass(slots=True)
class Storage:
    """Memory that one value owns and others view. `given`: it is there without a kernel. `kept`: nothing else may ever
    take it, since others than kernels read it, or its size is known only at run time."""

    owner: str
    first: int
    last: int
    given: bool = False
    kept: bool = False


def read_by(node: Node) -> tuple[str, ...]:
    """The inputs whose elements the node reads, and not their shape alone."""
    if is_communication(node):
        return node.inputs
    without = schema_of(node).shape_only
    return tuple(name for place, name in enumerate(node.inputs) if name and place not in without)


class Lives:
    """The storages of nodes that run in this order. `types` has every value, static where the dimensions decide it."""

    def __init__(self, nodes: Sequence[Node], types: Mapping[str, TensorType], kept: Iterable[str]) -> None:
        self._types = types
        self.storages: dict[str, Storage] = {}
        self.root: dict[str, str] = {}
        """The owner of each value's memory."""
        self.strides: dict[str, Strides | None] = {}
        """How each value lies; None where that is not known."""
        self.views: dict[str, str] = {}
        """For each view what it is a view of."""
        self.in_place: dict[str, str] = {}
        """For each owner that takes the place of another one: that one."""
        self._last_reader = {name: index for index, node in enumerate(nodes) for name in read_by(node)}
        for index, node in enumerate(nodes):
            if is_communication(node):
                self._communicate(node, index)
            else:
                self._compute(node, index)
        for name in kept:
            self._keep(name, len(nodes))
        self._find_places(nodes)

    def shape(self, name: str) -> Sizes | None:
        type_ = self._types[name]
        return type_.static_shape if type_.is_static else None

    def _communicate(self, node: Node, index: int) -> None:
        for name in node.inputs:
            self._keep(name, index)
        for name in node.outputs:
            self._give(name, index)

    def _keep(self, name: str, index: int) -> None:
        storage = self._storage(name, index)
        storage.last, storage.kept = max(storage.last, index), True

    def _give(self, name: str, index: int) -> Storage:
        shape = self.shape(name)
        self.strides[name] = None if shape is None else in_rows(shape)
        return self._own(name, index, given=True)

    def _storage(self, name: str, index: int) -> Storage:
        """The memory that the value lies in. What no node made was there from the start."""
        return self.storages[self.root[name]] if name in self.root else self._give(name, index)

    def _own(self, name: str, index: int, *, given: bool = False) -> Storage:
        last = max(index, self._last_reader.get(name, index))
        storage = Storage(name, index, last, given=given, kept=self.shape(name) is None)
        self.root[name] = name
        self.storages[name] = storage
        return storage

    def _compute(self, node: Node, index: int) -> None:
        schema = schema_of(node)
        for name in filter(None, node.inputs):
            self._storage(name, index)
        for name in filter(None, node.outputs):
            if not self._viewed(node, schema, name):
                self.strides[name] = self._made(node, schema, name)
                self._own(name, index)

    def _viewed(self, node: Node, schema: OpSchema, name: str) -> bool:
        """Whether the output is a view; it then lengthens the life of what it views."""
        if schema.views is False or not node.inputs or not node.inputs[0]:
            return False
        source = node.inputs[0]
        if self._types[source].dtype != self._types[name].dtype:
            return False
        strides = self._view_strides(node, schema, source, name)
        if strides == NO_VIEW:
            return False
        self.strides[name] = strides
        self.views[name] = source
        self.root[name] = self.root[source]
        storage = self.storages[self.root[source]]
        storage.last = max(storage.last, self._last_reader.get(name, 0))
        return True

    def _view_strides(self, node: Node, schema: OpSchema, source: str, name: str) -> Strides | None:
        before, after, strides = self.shape(source), self.shape(name), self.strides[source]
        if callable(schema.views):
            return schema.views(node, self._types[source].shape, strides, self._types[name].shape)
        if before is None or after is None or strides is None:
            return NO_VIEW
        return reshaped(before, strides, after)

    def _made(self, node: Node, schema: OpSchema, name: str) -> Strides | None:
        shape = self.shape(name)
        if shape is None:
            return None
        order = MemoryOrder.INPUT if schema.pointwise else schema.order
        inputs = ((self.shape(read), self.strides[read]) for read in node.inputs if read)
        return made(order, shape, ((sizes, strides) for sizes, strides in inputs if sizes is not None))

    def _find_places(self, nodes: Sequence[Node]) -> None:
        taken: set[str] = set()
        for index, node in enumerate(nodes):
            output = node.outputs[0] if node.outputs else ""
            if output and self.root.get(output) == output and not self.storages[output].kept:
                source = self._place_for(node, index, output, taken)
                if source is not None:
                    self.in_place[output] = self.root[source]
                    taken.add(self.root[source])

    def _place_for(self, node: Node, index: int, output: str, taken: set[str]) -> str | None:
        """The first input that the operator may overwrite, whose memory dies here and is just what the output needs."""
        if is_communication(node):
            return None
        schema = schema_of(node)
        names = {name for name in node.inputs if name}
        values_in = Counter(self.root[name] for name in names)
        for place, name in enumerate(node.inputs):
            if not name or not (schema.pointwise if schema.in_place is None else place in schema.in_place):
                continue
            storage = self.storages[self.root[name]]
            dies = storage.last == index and not storage.given and not storage.kept and storage.owner not in taken
            if (
                dies
                and values_in[storage.owner] == 1
                and self._fills(name, storage.owner)
                and self._lie_alike(name, output)
            ):
                return name
        return None

    def _fills(self, name: str, owner: str) -> bool:
        return self.shape(name) is not None and self._types[name].nbytes == self._types[owner].nbytes

    def _lie_alike(self, name: str, output: str) -> bool:
        shape, mine, other = self.shape(output), self.strides[output], self.strides[name]
        return (
            self._types[name] == self._types[output]
            and shape is not None
            and mine is not None
            and other is not None
            and same_places(shape, mine, other)
        )
