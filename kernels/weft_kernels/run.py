"""Runs nodes on arrays, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from weft_graph.ir import Node, Subgraph
from weft_graph.names import drawn_as
from weft_graph.schema import schema_of
from weft_kernels.body import Body
from weft_kernels.errors import KernelError, failed
from weft_kernels.kernel import Array, KernelContext, kernel_of


__all__ = ["KernelError", "run_body", "run_node", "run_nodes"]


def run_node(context: KernelContext, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """The node's outputs, one for each name in `node.outputs`, in order; also for a name that is ''.

    `context` may be the step's: its `node` and `asked` are set here. Raises KernelError where the inputs hold what the
    operator cannot take (a label that is no class) or do not fit in memory.
    """
    context = context.within(drawn_as(node.name) + context.iteration, node.outputs, context.iteration)
    try:
        return kernel_of(node)(context, inputs, schema_of(node).attributes_of(node))[: len(node.outputs)]
    except (ValueError, MemoryError) as error:
        raise failed(node, inputs, error) from error


def run_body(context: KernelContext, body: Subgraph, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The body's outputs, from arrays for its inputs and then for what it captures."""
    count = len(body.inputs)
    return Body(context, body, inputs[count:])(inputs[:count])


def run_nodes(context: KernelContext, nodes: Iterable[Node], values: dict[str, Array], keep: Iterable[str]) -> None:
    """Runs nodes in the given order. Fills `values`, and drops each one after its last reader, except those to keep.

    Raises KernelError, as `run_node` does.
    """
    nodes = tuple(nodes)
    readers = Counter(name for node in nodes for name in node.inputs if name)
    readers.update(keep)
    for node in nodes:
        outputs = run_node(context, node, [values[name] if name else None for name in node.inputs])
        for name in node.inputs:
            readers[name] -= 1
            if name and readers[name] == 0:
                del values[name]
        values.update((name, array) for name, array in zip(node.outputs, outputs, strict=True) if readers[name])
