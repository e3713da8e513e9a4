"""Runs nodes on arrays, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from weft_graph.ir import Node, Subgraph
from weft_graph.schema import schema_of
from weft_graph.types import array_text
from weft_kernels.kernel import Array, KernelContext, kernel_of


class KernelError(Exception):
    """An operator could not run on its inputs; the message names the node and the types of what it reads."""


def run_node(context: KernelContext, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """The node's outputs, one for each name in `node.outputs`, in order; also for a name that is ''.

    `context` may be the step's: its `node` and `asked` are set here. Raises KernelError where the inputs hold what the
    operator cannot take (a label that is no class) or do not fit in memory.
    """
    context = replace(context, node=node.name + context.iteration, asked=node.outputs)
    try:
        return kernel_of(node)(context, inputs, schema_of(node).attributes_of(node))[: len(node.outputs)]
    except (ValueError, MemoryError) as error:
        shown = ", ".join(
            f"{name} is {array_text(array)}"
            for name, array in zip(node.inputs, inputs, strict=True)
            if array is not None
        )
        raise KernelError(f"node {node.name!r} ({node.op_type}): {error} [{shown}]") from error


def run_body(
    context: KernelContext, body: Subgraph, inputs: Sequence[Array], *, turn: int | None = None
) -> tuple[Array, ...]:
    """The body's outputs, from arrays for its inputs and then for what it captures. `turn` counts a loop's."""
    names = (*body.inputs, *body.captured)
    values = dict(zip(names, inputs, strict=True))
    place = (lambda array: array) if context.xp is np else context.xp.asarray
    values.update((constant.name, place(constant.array)) for constant in body.constants)
    if turn is not None:
        context = replace(context, iteration=f"{context.iteration}#{turn}")
    run_nodes(context, body.nodes, values, keep=body.outputs)
    return tuple(values[name] for name in body.outputs)


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
