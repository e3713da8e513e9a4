"""Rows of a table by id, zeros for the id that is padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.indexing.rows import checked_indices, taken
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    table, ids = required(inputs)
    padding = as_int(attributes["padding_id"]) if "padding_id" in attributes else None
    index = checked_indices(context.xp, ids, table.shape[0], wraps=False, padding_id=padding)
    return (taken(context.xp, table, index),)
