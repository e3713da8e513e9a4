"""Elements and rows by their indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.cuda import kernels as cuda
from weft_kernels.errors import OutOfRangeError
from weft_kernels.host import any_of, number
from weft_kernels.kernel import Array

# --- Where along an axis an element stands: what ArgMax and ArgMin have in common -------------------------------------


def place(xp: Any, first: Callable[..., Array], data: Array, attributes: Mapping[str, AttributeValue]) -> Array:
    """The int64 index along `axis` of what `first(data, axis=)` finds the first of, or of the last of its equals."""
    axis = as_int(attributes["axis"])
    if as_int(attributes["select_last_index"]):
        index = data.shape[axis] - 1 - first(xp.flip(data, axis), axis=axis)
    else:
        index = first(data, axis=axis)
    index = xp.asarray(index, dtype=xp.int64)
    return xp.expand_dims(index, axis) if as_int(attributes["keepdims"]) else index  # type: ignore[no-any-return]  # xp is Any


# --- Where new parts of sequences stand in caches: what TensorScatter and its gradient share --------------------------


def sequence_axis(attributes: Mapping[str, AttributeValue], rank: int) -> int:
    """The sequences' axis, counted from the front."""
    return normalised(as_int(attributes["axis"]), rank)


def cache_places(
    xp: Any, starts: Array | None, shape: tuple[int, int, int], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, Array]:
    """(samples (batch, 1), places (batch, new)) that index a cache whose sequences are its axis 1.

    `starts` are on the host; `shape` is (batch, new, length of the cache). Raises ValueError, with the place, where
    a part would be written outside the cache.
    """
    batch, new, length = shape
    first = np.zeros(batch, dtype=np.int64) if starts is None else starts
    if as_str(attributes["mode"]) == "circular":
        # Taken round first, so that the largest of int64 has no sum beyond it.
        places = (first % max(length, 1))[:, None] + np.arange(new)
        places %= max(length, 1)
    else:
        wrong = (first < 0) | (first > length - new)
        if wrong.any():
            raise ValueError(f"{new} elements from {int(first[wrong][0])} on are not within a cache of {length}")
        places = first[:, None] + np.arange(new)
    return xp.arange(batch)[:, None], xp.asarray(places)


# --- Indices of rows: checked, counted from the front, and rows summed by them ----------------------------------------


def checked_indices(xp: Any, indices: Array, count: int, *, wraps: bool, padding_id: int | None = None) -> Array:
    """The indices, int64, in [0, count), or -1 where one is `padding_id`. Those below 0 count from the end if `wraps`.

    Raises OutOfRangeError where an index names none of the `count` rows.
    """
    ids = indices.astype(xp.int64, copy=False)
    padded = None if padding_id is None else ids == padding_id
    if padded is not None:
        ids = xp.where(padded, 0, ids)
    low = -count if wraps else 0
    if ids.size and _some_outside(xp, ids, low, count):
        outside = (ids < low) | (ids >= count)
        if padded is not None:
            outside &= ~padded
        if any_of(xp, outside):
            raise OutOfRangeError("index", int(number(xp, ids[outside][0])), low, count)
    if wraps:
        ids = xp.where(ids < 0, ids + count, ids)
    return ids if padded is None else xp.where(padded, -1, ids)


def _some_outside(xp: Any, ids: Array, low: int, count: int) -> bool:
    """The host finds both ends without an array more, and of counts from the front one: below 0 is very large without
    a sign. A device is asked once, not twice."""
    if xp is np:
        if low == 0:
            return int(np.maximum.reduce(ids.view(np.uint64), axis=None)) >= count
        return int(ids.min()) < low or int(ids.max()) >= count
    return any_of(xp, (ids < low) | (ids >= count))


def taken(xp: Any, table: Array, index: Array, out: Array | None = None) -> Array:
    """The rows of `table` that `index` names, zeros where it is -1: see `checked_indices`. A device may write them to
    `out`."""
    if cuda.rows_fit(xp, table):
        return cuda.gather_rows(xp, table, index, out)
    padding = index < 0
    if not any_of(xp, padding):
        return xp.take(table, index, axis=0)  # type: ignore[no-any-return]  # xp is Any
    if len(table) == 0:
        return xp.zeros((*index.shape, *table.shape[1:]), dtype=table.dtype)  # type: ignore[no-any-return]  # xp is Any
    rows: Array = xp.take(table, xp.where(padding, 0, index), axis=0)
    rows[padding] = 0
    return rows


def summed_rows(xp: Any, rows: Array, index: Array, count: int, *, start: float = 0.0) -> Array:
    """The sum, for each of `count` places, of the rows whose index (n,) names it, in order; `rows` are (n, columns).
    On the host a sum starts from `start`: -0.0 leaves a row that is alone as it is, 0.0 makes 0.0 of its -0.0.

    What sums rows anywhere in the project calls this: gradients of a step here, pushes of a table on its shard.

    Rows of index -1 are left out. The same bits in every run; float16 is summed as float32 and rounded once.
    """
    if xp is not np:
        # A device's own `add.at` is atomic, and so of another order in every run.
        return cuda.sum_rows(xp, rows, index, count)
    named = index >= 0
    if not named.all():
        rows, index = rows[named], index[named]
    wide = rows.astype(xp.float32) if rows.dtype == xp.float16 else rows
    result = _added_in_order(wide, index, count, start)
    return result.astype(rows.dtype, copy=False)


def _added_in_order(rows: Array, index: Array, count: int, start: float) -> Array:
    """`np.add.at` on flat elements is about four times as fast as on rows, mostly twice as fast as sorting first."""
    columns = rows.shape[1]
    result = np.full(count * columns, start, dtype=rows.dtype)
    step = max(1, CACHE_ELEMENTS // max(1, columns))
    for first in range(0, len(index), step):
        part = index[first : first + step]
        places = part[:, None] * columns + np.arange(columns)
        np.add.at(result, places.reshape(-1), rows[first : first + step].reshape(-1))
    return result.reshape(count, columns)


# --- Elements of an array by flat place: where indices lie, and updates put there or combined with what is there ------


_COMBINED: Final[Mapping[str, str]] = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
"""The array modules' names of what two elements become."""


def places_along(xp: Any, indices: Array, shape: Sequence[int], axis: int) -> Array:
    """The flat place, in an array of `shape`, that each index along `axis` names, int64.

    Raises ValueError, with the index, for one outside [-d, d).
    """
    _check_beside(indices.shape, shape, axis)
    chosen = checked_indices(xp, indices, shape[axis], wraps=True)
    places = chosen * math.prod(shape[axis + 1 :])
    for other, size in enumerate(indices.shape):
        if other != axis:
            steps = xp.arange(size, dtype=xp.int64) * math.prod(shape[other + 1 :])
            places = places + steps.reshape(-1, *(1,) * (indices.ndim - 1 - other))
    return places


def _check_beside(size: Sequence[int], shape: Sequence[int], axis: int) -> None:
    longer = [other for other in range(len(shape)) if other != axis and size[other] > shape[other]]
    if longer:
        raise ValueError(f"indices of {list(size)} are longer than data of {list(shape)} along dimension {longer[0]}")


def places_of_tuples(xp: Any, indices: Array, shape: Sequence[int], batch_dims: int = 0) -> Array:
    """The number of the slice that each tuple of indices names, of all that the data of `shape` has: (tuples,) int64.

    Raises ValueError, with the index, for one outside its dimension.
    """
    count, batch = indices.shape[-1], math.prod(shape[:batch_dims])
    tuples = indices.reshape(batch, math.prod(indices.shape[batch_dims:-1]), count)
    places = xp.arange(batch, dtype=xp.int64)[:, None]
    for column, size in enumerate(shape[batch_dims : batch_dims + count]):
        places = places * size + checked_indices(xp, tuples[:, :, column], size, wraps=True)
    return places.reshape(-1)  # type: ignore[no-any-return]  # xp is Any


def slices(data: Array, dims: int) -> Array:
    """The data as (slices, elements of one): a slice is named by an index in each of the first `dims` dimensions."""
    return data.reshape(math.prod(data.shape[:dims]), math.prod(data.shape[dims:]))


def scattered(xp: Any, data: Array, places: Array, updates: Array, reduction: str) -> Array:
    """`data` (n, width), with the row `updates` (m, width) of each place (m,) put there or combined with what is there.

    What is put to one place is combined in order; of `none`, which is undefined then, one of them stays.
    """
    result = xp.empty(data.shape, dtype=data.dtype)
    result[...] = data
    if reduction == "none":
        result[places] = updates
    elif xp is np:
        flat = (places[:, None] * data.shape[1] + np.arange(data.shape[1])).reshape(-1)
        getattr(np, _COMBINED[reduction]).at(result.reshape(-1), flat, updates.reshape(-1))
    elif reduction == "add" and data.dtype.kind == "f":
        result += summed_rows(xp, updates, places, data.shape[0])
    else:
        distinct, combined = _combined(xp, places, updates, getattr(xp, _COMBINED[reduction]))
        result[distinct] = getattr(xp, _COMBINED[reduction])(result[distinct], combined)
    return result  # type: ignore[no-any-return]  # xp is Any


def _combined(xp: Any, places: Array, updates: Array, combine: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    """(distinct places, what the updates of each combine to), always by the same pairs: a device's `at` has no order.

    Each turn combines runs of twice as many neighbours of one place, once they are sorted.
    """
    order = xp.argsort(places, kind="stable")
    places, updates = places[order], updates[order]
    reach = 1
    while reach < places.size:
        same = (places[reach:] == places[:-reach])[:, None]
        later = xp.where(same, combine(updates[:-reach], updates[reach:]), updates[reach:])
        updates = xp.concatenate([updates[:reach], later])
        reach *= 2
    last = xp.concatenate([places[1:] != places[:-1], xp.ones(min(places.size, 1), dtype=bool)])
    return places[last], updates[last]
