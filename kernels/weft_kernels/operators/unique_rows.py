"""The distinct rows that all ids name, ascending, and where each id's row is among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.indices import checked_indices
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    given = required(inputs)
    every = xp.concatenate([index.reshape(-1) for index in _checked(xp, given, attributes)])
    named = every >= 0
    distinct, places = xp.unique(every[named], return_inverse=True)
    rows_ids = xp.full(every.size, -1, dtype=xp.int64)
    rows_ids[: distinct.size] = distinct
    index = xp.full(every.size, -1, dtype=xp.int64)
    index[named] = places.reshape(-1)
    parts = []
    start = 0
    for ids in given:
        parts.append(index[start : start + ids.size].reshape(ids.shape))
        start += ids.size
    return rows_ids, *parts


def _checked(xp: Any, given: Sequence[Array], attributes: Mapping[str, AttributeValue]) -> Iterator[Array]:
    rows, readers = as_int(attributes["rows"]), attributes["readers"]
    flags = (as_ints(attributes[name]) for name in ("wraps", "padded", "padding_ids"))
    for place, (ids, wraps, padded, padding) in enumerate(zip(given, *flags, strict=True)):
        try:
            yield checked_indices(xp, ids, rows, wraps=bool(wraps), padding_id=padding if padded else None)
        except ValueError as error:
            reader = readers[place] if isinstance(readers, tuple) else readers
            raise ValueError(f"{error}, read by node {reader!r}") from None
