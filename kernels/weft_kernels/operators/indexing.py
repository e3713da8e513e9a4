"""Elements and rows by their indices: gathered, scattered, found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_int, as_ints, as_str, as_texts
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.errors import OutOfRangeError
from weft_kernels.indexing import (
    cache_places,
    checked_indices,
    places_along,
    places_of_tuples,
    scattered,
    sequence_axis,
    slices,
    summed_rows,
    taken,
)
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel


@kernel("Gather", waits=True)
def gather(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Entries along an axis, by index."""
    xp = context.xp
    data, indices = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    return (xp.take(data, checked_indices(xp, indices, data.shape[axis], wraps=True), axis=axis),)


@kernel("GatherGrad", domain=WEFT_DOMAIN, in_float32=("bfloat16",), waits=True)
def gather_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients summed by the index of what they belong to."""
    xp = context.xp
    gradient, data, indices = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    padding = as_int(attributes["padding_id"]) if "padding_id" in attributes else None
    count, before, after = data.shape[axis], data.shape[:axis], data.shape[axis + 1 :]
    wraps = bool(as_int(attributes["wraps"]))
    index = checked_indices(xp, indices, count, wraps=wraps, padding_id=padding).reshape(-1)
    # (before, indices, after) -> a row for each index, of all that belongs to it.
    rows = gradient.reshape(math.prod(before), index.size, math.prod(after)).swapaxes(0, 1)
    summed = summed_rows(xp, rows.reshape(index.size, math.prod(before) * math.prod(after)), index, count)
    return (summed.reshape(count, math.prod(before), math.prod(after)).swapaxes(0, 1).reshape(data.shape),)


@kernel("Embedding", domain=WEFT_DOMAIN, waits=True)
def embedding(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Rows of a table by id, zeros for the id that is padding."""
    table, ids = required(inputs)
    padding = as_int(attributes["padding_id"]) if "padding_id" in attributes else None
    index = checked_indices(context.xp, ids, table.shape[0], wraps=False, padding_id=padding)
    return (taken(context.xp, table, index, context.out(0)),)


@kernel("GatherElements", waits=True)
def gather_elements(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """One element of the data for each index along an axis."""
    xp = context.xp
    data, indices = required(inputs)
    places = places_along(xp, indices, data.shape, normalised(as_int(attributes["axis"]), data.ndim))
    return (xp.take(data.reshape(-1), places),)


@kernel("GatherElementsGrad", domain=WEFT_DOMAIN, waits=True)
def gather_elements_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of one element, added in order."""
    xp = context.xp
    gradient, data, indices = required(inputs)
    places = places_along(xp, indices, data.shape, normalised(as_int(attributes["axis"]), data.ndim))
    return (summed_rows(xp, gradient.reshape(-1, 1), places.reshape(-1), data.size).reshape(data.shape),)


@kernel("GatherND", waits=True)
def gather_nd(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A slice of the data for each tuple of indices."""
    xp = context.xp
    data, indices = required(inputs)
    batch_dims = as_int(attributes["batch_dims"])
    named = batch_dims + indices.shape[-1]
    places = places_of_tuples(xp, indices, data.shape, batch_dims)
    rows = xp.take(slices(data, named), places, axis=0)
    return (rows.reshape(*indices.shape[:-1], *data.shape[named:]),)


@kernel("GatherNDGrad", domain=WEFT_DOMAIN, waits=True)
def gather_nd_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of one slice, added in order."""
    xp = context.xp
    gradient, data, indices = required(inputs)
    batch_dims = as_int(attributes["batch_dims"])
    places = places_of_tuples(xp, indices, data.shape, batch_dims)
    count, width = slices(data, batch_dims + indices.shape[-1]).shape
    return (summed_rows(xp, gradient.reshape(places.size, width), places, count).reshape(data.shape),)


@kernel("ScatterElements", waits=True)
def scatter_elements(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The data with an update for each index along an axis."""
    data, indices, updates = required(inputs)
    places = places_along(context.xp, indices, data.shape, normalised(as_int(attributes["axis"]), data.ndim)).reshape(
        -1
    )
    rows = scattered(
        context.xp, data.reshape(-1, 1), places, updates.reshape(places.size, 1), as_str(attributes["reduction"])
    )
    return (rows.reshape(data.shape),)


@kernel("ScatterND", waits=True)
def scatter_nd(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The data with a slice of updates for each tuple of indices."""
    data, indices, updates = required(inputs)
    places = places_of_tuples(context.xp, indices, data.shape)
    rows = slices(data, indices.shape[-1])
    given = updates.reshape(places.size, rows.shape[1])
    return (scattered(context.xp, rows, places, given, as_str(attributes["reduction"])).reshape(data.shape),)


@kernel("TensorScatter", host_inputs=(2,), waits=True)
def tensor_scatter(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A copy of the cache with the update written into it."""
    xp = context.xp
    cache, update = required(inputs, 2)
    axis = sequence_axis(attributes, cache.ndim)
    shape = (cache.shape[0], update.shape[axis], cache.shape[axis])
    result = cache.copy()
    xp.moveaxis(result, axis, 1)[cache_places(xp, optional(inputs, 2), shape, attributes)] = xp.moveaxis(
        update, axis, 1
    )
    return (result,)


@kernel("TensorScatterGrad", domain=WEFT_DOMAIN, host_inputs=(2,), waits=True)
def tensor_scatter_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of the cache, which is 0 where it was overwritten, and of what was written."""
    xp = context.xp
    gradient, update = required(inputs, 2)
    axis = sequence_axis(attributes, gradient.ndim)
    shape = (gradient.shape[0], update.shape[axis], gradient.shape[axis])
    places = cache_places(xp, optional(inputs, 2), shape, attributes)
    by_cache = gradient.copy()
    moved = xp.moveaxis(by_cache, axis, 1)
    by_update = moved[places]
    moved[places] = 0
    return by_cache, xp.moveaxis(by_update, 1, axis)


@kernel("Compress", waits=True)
def compress(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Elements or slices whose condition is true."""
    xp = context.xp
    data, condition = required(inputs)
    if "axis" not in attributes:
        data, axis = data.reshape(-1), 0
    else:
        axis = normalised(as_int(attributes["axis"]), data.ndim)
    if condition.size > data.shape[axis]:
        raise ValueError(
            f"the condition has {condition.size} elements, and there are {data.shape[axis]} to choose from"
        )
    return (xp.take(data, xp.flatnonzero(condition), axis=axis),)


@kernel("NonZero", waits=True)
def non_zero(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Places of the elements that are not zero."""
    xp = context.xp
    (data,) = required(inputs)
    if data.ndim == 0:
        return (xp.zeros((0, xp.flatnonzero(data).size), dtype=xp.int64),)
    return (xp.stack(xp.nonzero(data)).astype(xp.int64, copy=False),)


@kernel("Unique", waits=True)
def unique(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The distinct elements or slices, by sorting."""
    xp = context.xp
    (data,) = required(inputs)
    if "axis" in attributes:
        axis = normalised(as_int(attributes["axis"]), data.ndim)
    else:
        data, axis = data.reshape(-1), 0
    first, inverse, counts = _unique_distinct(xp, _rows(data, axis))
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


def _unique_distinct(xp: Any, rows: Array) -> tuple[Array, Array, Array]:
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


_MARKED_ROWS: Final = 16
"""Rows of a table for each id, up to which marking the rows that are named is ten times as fast as sorting the ids."""


@kernel("UniqueRows", domain=WEFT_DOMAIN, waits=True)
def unique_rows(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The distinct rows that all ids name, ascending, and where each id's row is among them."""
    xp = context.xp
    given = required(inputs)
    if len(given) == 1 and xp is np and given[0].size and attributes["padded"] == (0,):
        (wraps,), (reader,) = as_ints(attributes["wraps"]), as_texts(attributes["readers"])
        ids = _checked_ids(given[0], xp, as_int(attributes["rows"]), wraps=bool(wraps), padding_id=None, reader=reader)
        rows_ids, index = (context.out(place, np.int64) for place in range(2))
        flat = None if index is None else index.reshape(-1)
        distinct, places = _unique_rows_distinct(xp, ids.reshape(-1), as_int(attributes["rows"]), flat)
        rows_ids = np.empty(ids.size, np.int64) if rows_ids is None else rows_ids
        rows_ids[: len(distinct)] = distinct
        rows_ids[len(distinct) :] = -1
        return rows_ids, index if places is flat and index is not None else places.reshape(ids.shape)
    every = xp.concatenate([index.reshape(-1) for index in _checked(xp, given, attributes)])
    named = every >= 0
    distinct, places = _unique_rows_distinct(xp, every[named], as_int(attributes["rows"]))
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


def _unique_rows_distinct(xp: Any, ids: Array, count: int, out: Array | None = None) -> tuple[Array, Array]:
    """The distinct ids, ascending, and the place of each id among them, which may be written to `out` of the host."""
    if count > _MARKED_ROWS * ids.size:
        shift = max(ids.size - 1, 1).bit_length()
        if xp is np and count < 1 << 63 - shift:
            return _sorted_with_places(ids, shift, np.empty(ids.size, np.int64) if out is None else out)
        distinct, places = xp.unique(ids, return_inverse=True)
        return distinct, places.reshape(-1)
    marked = xp.zeros(count, dtype=bool)
    marked[ids] = True
    distinct = xp.flatnonzero(marked)
    place_of = xp.empty(count, dtype=xp.int64)
    place_of[distinct] = xp.arange(distinct.size)
    return distinct, place_of[ids]


def _sorted_with_places(ids: Array, shift: int, places: Array) -> tuple[Array, Array]:
    """The same by one sort of numbers, each an id and, in its lowest bits, where that stands: a fifth of the time that
    sorting places by ids takes."""
    packed = ids << shift
    packed |= np.arange(ids.size)
    packed.sort()
    ordered = packed >> shift
    packed &= (1 << shift) - 1
    begins = np.zeros(ids.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    places[packed] = np.add.accumulate(begins, dtype=np.int64)
    begins[:1] = True
    return ordered[begins], places


def _checked(xp: Any, given: Sequence[Array], attributes: Mapping[str, AttributeValue]) -> Iterator[Array]:
    rows, readers = as_int(attributes["rows"]), as_texts(attributes["readers"])
    flags = (as_ints(attributes[name]) for name in ("wraps", "padded", "padding_ids"))
    for ids, wraps, padded, padding, reader in zip(given, *flags, readers, strict=True):
        padding_id = padding if padded else None
        yield _checked_ids(ids, xp, rows, wraps=bool(wraps), padding_id=padding_id, reader=reader)


def _checked_ids(ids: Array, xp: Any, rows: int, *, wraps: bool, padding_id: int | None, reader: str) -> Array:
    try:
        return checked_indices(xp, ids, rows, wraps=wraps, padding_id=padding_id)
    except OutOfRangeError as error:
        raise OutOfRangeError(error.what, error.value, error.low, error.stop, reader=reader) from None
