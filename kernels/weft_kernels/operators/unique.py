"""The distinct elements or slices, by sorting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    if "axis" in attributes:
        axis = normalised(as_int(attributes["axis"]), data.ndim)
    else:
        data, axis = data.reshape(-1), 0
    first, inverse, counts = _distinct(xp, _rows(data, axis))
    if not as_int(attributes["sorted"]):
        order = xp.argsort(first)
        rank = xp.empty(order.shape, dtype=xp.int64)
        rank[order] = xp.arange(order.size)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    return xp.take(data, first, axis=axis), first, inverse, counts


def _rows(data: Array, axis: int) -> Array:
    """(slices along the axis, elements of one)."""
    count = data.shape[axis]
    return data.swapaxes(0, axis).reshape(count, data.size // count if count else 0)


def _distinct(xp: Any, rows: Array) -> tuple[Array, Array, Array]:
    """Of the distinct rows, sorted: the first place of each, the number of every row's own, how many there are."""
    count = rows.shape[0]
    order = _sorted_order(xp, rows)
    ordered = rows[order]
    begins = xp.ones(count, dtype=bool)
    # What is no number is equal to itself here, as it is sorted.
    same = (ordered[1:] == ordered[:-1]) | ((ordered[1:] != ordered[1:]) & (ordered[:-1] != ordered[:-1]))
    begins[1:] = ~same.all(axis=1)
    starts = xp.flatnonzero(begins).astype(xp.int64, copy=False)
    inverse = xp.empty(count, dtype=xp.int64)
    inverse[order] = xp.cumsum(begins.astype(xp.int64)) - 1
    ends = xp.concatenate([starts[1:], xp.full(min(count, 1), count, dtype=xp.int64)])
    return order[starts].astype(xp.int64, copy=False), inverse, ends - starts


def _sorted_order(xp: Any, rows: Array) -> Array:
    """The stable order of the rows, the first column before the second."""
    if rows.shape[1] == 0:
        return xp.arange(rows.shape[0])  # type: ignore[no-any-return]  # xp is Any
    return xp.lexsort(xp.ascontiguousarray(rows.T[::-1]))  # type: ignore[no-any-return]  # xp is Any
