"""Elements of an array by flat place: where indices lie, and updates put there or combined with what is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_kernels.indexing.rows import checked_indices, summed_rows
from weft_kernels.kernel import Array

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
    for number, size in enumerate(shape[batch_dims : batch_dims + count]):
        places = places * size + checked_indices(xp, tuples[:, :, number], size, wraps=True)
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
