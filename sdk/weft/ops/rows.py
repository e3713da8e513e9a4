"""Operators that read and write by index. What Gather and Embedding alone read is fetched and pushed by rows."""

from __future__ import annotations

from weft.expression import Expression, Operand, apply_many
from weft.ops.generic import Name, labelled, one
from weft_graph.ir import WEFT_DOMAIN


def gather(data: Operand, indices: Operand, axis: int = 0, *, name: Name = None) -> Expression:
    """Slices of `data` along `axis`, by indices (int32 or int64); a negative one counts from the end.

    data (rows, ...) and indices (i, ...) give (i, ..., ...) for axis 0. An index out of range stops the job.
    """
    return one("Gather", data, indices, axis=axis, name=name)


def embedding(table: Operand, ids: Operand, *, padding_id: int | None = None, name: Name = None) -> Expression:
    """Rows of `table` (rows, ...) by ids (int32 or int64) of any shape; `padding_id` gives rows of zeros.

    The padding's row neither travels nor trains. An id out of range stops the job.
    """
    attributes = {"padding_id": padding_id}
    label = labelled(name, "Embedding")
    return apply_many("Embedding", (table, ids), attributes, requested=1, label=label, domain=WEFT_DOMAIN)[0]


def gather_elements(data: Operand, indices: Operand, axis: int = 0, *, name: Name = None) -> Expression:
    """For each index the element of `data` at its place, but at the index along `axis`: the shape of `indices`."""
    return one("GatherElements", data, indices, axis=axis, name=name)


def gather_nd(data: Operand, indices: Operand, *, batch_dims: int = 0, name: Name = None) -> Expression:
    """For each tuple, the last dimension of `indices`, the slice of `data` that it names.

    The first `batch_dims` dimensions are the same in both, and a tuple names dimensions after them.
    """
    return one("GatherND", data, indices, batch_dims=batch_dims, name=name)


def scatter_elements(
    data: Operand,
    indices: Operand,
    updates: Operand,
    axis: int = 0,
    *,
    reduction: str = "none",
    name: Name = None,
) -> Expression:
    """`data` with each update at its place, but at the index along `axis`.

    `reduction` none puts it there, add, mul, max and min combine it with what is there.
    """
    return one("ScatterElements", data, indices, updates, axis=axis, reduction=reduction, name=name)


def scatter_nd(
    data: Operand, indices: Operand, updates: Operand, *, reduction: str = "none", name: Name = None
) -> Expression:
    """`data` with a slice of `updates` at each tuple, the last dimension of `indices`; see scatter_elements."""
    return one("ScatterND", data, indices, updates, reduction=reduction, name=name)
