"""Runs nodes on arrays, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from weft_graph.ir import Node, Subgraph
from weft_graph.names import drawn_as
from weft_graph.schema import schema_of
from weft_graph.types import TensorType
from weft_kernels.body import Body
from weft_kernels.errors import KernelError, failed
from weft_kernels.fitting import fitted
from weft_kernels.kernel import Array, KernelContext, kernel_of

__all__ = ["KernelError", "run_body", "run_node", "run_nodes"]


def run_node(
    context: KernelContext,
    node: Node,
    inputs: Sequence[Array | None],
    types: Mapping[str, TensorType] | None = None,
) -> tuple[Array, ...]:
    """The node's outputs, one for each name in `node.outputs`, in order; also for a name that is ''.

    `context` may be the step's: its `node` and `asked` are set here. What `types`, which were inferred, leave open is
    checked. Raises KernelError where the inputs hold what the operator cannot take (a label that is no class) or do not
    fit in memory.
    """
    context = context.within(drawn_as(node.name) + context.iteration, node.outputs, context.iteration)
    kernel = kernel_of(node) if types is None else fitted(node, kernel_of(node), types)
    try:
        return kernel(context, inputs, schema_of(node).attributes_of(node))[: len(node.outputs)]
    except (ValueError, MemoryError) as error:
        raise failed(node, inputs, error) from error


def run_body(context: KernelContext, body: Subgraph, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The body's outputs, from arrays for its inputs and then for what it captures."""
    count = len(body.inputs)
    return Body(context, body, inputs[count:])(inputs[:count])


def run_nodes(
    context: KernelContext,
    nodes: Iterable[Node],
    values: dict[str, Array],
    keep: Iterable[str],
    types: Mapping[str, TensorType] | None = None,
) -> None:
    """Runs nodes in the given order. Fills `values`, and drops each one after its last reader, except those to keep.

    `types` are those that were inferred; where one was left open, what reads the value is checked as it runs.
    Raises KernelError, as `run_node` does.
    """
    nodes = tuple(nodes)
    readers = Counter(name for node in nodes for name in node.inputs if name)
    readers.update(keep)
    for node in nodes:
        reads = [values[name] if name else None for name in node.inputs]
        outputs = run_node(context, node, reads, types)
        for name in filter(None, node.inputs):
            readers[name] -= 1
            if readers[name] == 0:
                del values[name]
        values.update((name, array) for name, array in zip(node.outputs, outputs, strict=True) if readers[name])
