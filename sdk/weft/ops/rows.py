"""Operators that read a table by rows: what they alone read is fetched and pushed by rows."""

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
