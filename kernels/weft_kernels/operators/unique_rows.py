"""The distinct rows that all ids name, ascending, and where each id's row is among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from weft_graph.attributes import as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.indexing.rows import checked_indices
from weft_kernels.kernel import Array, KernelContext

_MARKED_ROWS: Final = 16
"""Rows of a table for each id, up to which marking the rows that are named is ten times as fast as sorting the ids."""


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    given = required(inputs)
    every = xp.concatenate([index.reshape(-1) for index in _checked(xp, given, attributes)])
    named = every >= 0
    distinct, places = _distinct(xp, every[named], as_int(attributes["rows"]))
    rows_ids = xp.full(every.size, -1, dtype=xp.int64)
    rows_ids[: distinct.size] = distinct
    index = xp.full(every.size, -1, dtype=xp.int64)
    index[named] = places
    parts = []
    start = 0
    for ids in given:
        parts.append(index[start : start + ids.size].reshape(ids.shape))
        start += ids.size
    return rows_ids, *parts


def _distinct(xp: Any, ids: Array, count: int) -> tuple[Array, Array]:
    """The distinct ids, ascending, and the place of each id among them."""
    if count > _MARKED_ROWS * ids.size:
        distinct, places = xp.unique(ids, return_inverse=True)
        return distinct, places.reshape(-1)
    marked = xp.zeros(count, dtype=bool)
    marked[ids] = True
    distinct = xp.flatnonzero(marked)
    place_of = xp.empty(count, dtype=xp.int64)
    place_of[distinct] = xp.arange(distinct.size)
    return distinct, place_of[ids]


def _checked(xp: Any, given: Sequence[Array], attributes: Mapping[str, AttributeValue]) -> Iterator[Array]:
    rows, readers = as_int(attributes["rows"]), attributes["readers"]
    flags = (as_ints(attributes[name]) for name in ("wraps", "padded", "padding_ids"))
    for place, (ids, wraps, padded, padding) in enumerate(zip(given, *flags, strict=True)):
        try:
            yield checked_indices(xp, ids, rows, wraps=bool(wraps), padding_id=padding if padded else None)
        except ValueError as error:
            reader = readers[place] if isinstance(readers, tuple) else readers
            raise ValueError(f"{error}, read by node {reader!r}") from None
