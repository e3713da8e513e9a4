"""What a node costs at given shapes: operations on elements, and bytes of what it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft_graph.errors import GraphRefusedError
from weft_graph.infer import infer_program
from weft_graph.ir import Node, Subgraph
from weft_graph.program import Program
from weft_graph.schema import OpSchema, schema_of
from weft_graph.types import TensorType
from weft_graph.weft_domain import is_communication


@dataclass(frozen=True, slots=True)
class Cost:
    """`flops` operations on elements, `made_bytes` of outputs, `moved_bytes` of inputs and outputs together."""

    flops: int
    made_bytes: int
    moved_bytes: int


def is_counted(schema: OpSchema) -> bool:
    """Whether `node_cost` knows the operator's work."""
    return schema.pointwise or schema.flops is not None


def node_cost(node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> Cost:
    """What the node costs with inputs and outputs of these types, whose dimensions are all numbers.

    An operator that goes element by element counts one for each element that it writes. Raises GraphRefusedError,
    naming the node, for one whose work its schema does not count.
    """
    schema = schema_of(node)
    if schema.flops is not None:
        flops = schema.flops(node, reads, writes)
    elif schema.pointwise:
        flops = sum(type_.size for type_ in writes)
    else:
        raise GraphRefusedError(f"node {node.name!r} ({node.op_type}): nothing counts its work", node=node.name)
    made = sum(type_.nbytes for type_ in writes)
    return Cost(flops, made, made + sum(type_.nbytes for type_ in reads if type_ is not None))


def operations(node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    """Operations on elements of any node, all dimensions being numbers.

    What neither `flops` nor `work` counts is taken as one for each element that it reads or writes; a node with a body
    of pointwise nodes, as one for each of them and each element that it writes.
    """
    schema = schema_of(node)
    count = schema.flops or schema.work
    if count is not None:
        return count(node, reads, writes)
    made = sum(type_.size for type_ in writes)
    if schema.pointwise:
        return made
    nodes = max((len(body.nodes) for body in node.attributes.values() if isinstance(body, Subgraph)), default=0)
    return made * nodes if nodes else made + sum(type_.size for type_ in reads if type_ is not None)


def program_operations(program: Program, dims: Mapping[str, int]) -> int:
    """Operations on elements of all of a program's nodes; one with a size that only values decide counts as none."""
    types = infer_program(program, dims)
    total = 0
    for node in program.nodes:
        if is_communication(node):
            continue
        reads = [types[name] if name else None for name in node.inputs]
        writes = [types[name] for name in node.outputs if name]
        if all(type_ is None or type_.is_static for type_ in (*reads, *writes)):
            total += operations(node, reads, writes)
    return total
