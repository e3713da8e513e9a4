"""A plan: a program bound to dimensions, ready to be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft_graph.ir import AttributeValue, Node
from weft_graph.program import Role
from weft_graph.types import TensorType
from weft_graph.weft_domain import FETCH
from weft_kernels.kernel import Array, Kernel
from weft_worker.arena import Placement


@dataclass(frozen=True, slots=True)
class BoundNode:
    """One node, bound. `inputs` and `outputs` are places in the value table, None where the node leaves one out.

    `kernel` is None for communication, which the worker carries out with the store; `key` and `priority` are its
    attributes then, and empty otherwise.
    """

    node: Node
    kernel: Kernel | None
    attributes: Mapping[str, AttributeValue]
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    key: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes of a segment, which run one after the other, and the communication that may leave once they have.

    `sends` are the places of what leaves, and `brings` of all else that the host reads of what these nodes make: ids of
    rows to fetch, and the plan's outputs.
    """

    nodes: tuple[BoundNode, ...]
    leaving: tuple[BoundNode, ...]
    sends: tuple[int, ...] = ()
    brings: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of nodes that have kernels: one piece of the engine's work. `reads` are places that others write."""

    pieces: tuple[Piece, ...]
    reads: tuple[int, ...]


Arrivals = tuple[BoundNode, ...]
"""Communication that begins together: what one segment fetches, or a node by itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A program with every type static, but for dimensions that only values decide.

    A value's place is its index in `names`, `types` and `readers`. `readers` counts who still reads a value: nodes, and
    the job for each output that it takes; a value whose last reader is done is dropped. `constants` are the graph's own
    values, by place. `placement` says where in memory the values lie. `work` is what the engine schedules. `aliased`
    are the places of values that lie in memory of others: what is fetched, and views.
    """

    role: Role
    dims: Mapping[str, int]
    nodes: tuple[BoundNode, ...]
    work: tuple[Segment | Arrivals, ...]
    names: tuple[str, ...]
    types: tuple[TensorType, ...]
    readers: tuple[int, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    constants: Mapping[int, Array]
    placement: Placement
    aliased: frozenset[int]
    sent: Mapping[str, int]
    """The place of each key's gradient."""

    @property
    def fetched(self) -> Mapping[str, int]:
        """The place that each fetched key goes to."""
        from_store = (bound for bound in self.nodes if bound.kernel is None and bound.node.op_type == FETCH)
        return {bound.key: place for bound in from_store for place in bound.outputs if place is not None}
