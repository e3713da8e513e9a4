"""Values at places between elements: sums of a few rows around each place, and the gradients of rows and places.

An input (images, channels, spatial ...) is laid out as rows, one for each element of the spatial dimensions, with all
channels in it; the last row is zeros, and -1, which names it, is what lies outside.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

from weft_kernels.indexing.rows import summed_rows
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True)
class Tap:
    """One of the elements around each of `points` places: which, its weight, and the weight's slope.

    Along one dimension `elements` count along it; over all of them they are rows. -1 is outside. `slopes` has an array
    for each dimension.
    """

    elements: Array
    weights: Array
    slopes: tuple[Array, ...]


def rows_of(xp: Any, data: Array, dtype: Any) -> Array:
    """(images * elements + 1, channels): the data (images, channels, spatial ...) as rows of `dtype`."""
    images, channels, *shape = data.shape
    elements = math.prod(shape)
    result: Array = xp.zeros((images * elements + 1, channels), dtype=dtype)
    target = result[:-1].reshape(images, elements, channels)
    target[...] = data.reshape(images, channels, elements).swapaxes(1, 2)
    return result


def unrowed(rows: Array, shape: tuple[int, ...]) -> Array:
    """The reverse for rows without the last one: (images, channels, spatial ...) = `shape`."""
    images, channels, *spatial = shape
    return rows.reshape(images, math.prod(spatial), channels).swapaxes(1, 2).reshape(shape)


def inside(xp: Any, numbers: Array, size: int) -> Array:
    """Whole numbers as elements, int64; -1 where there is none such."""
    is_inside = (numbers >= 0) & (numbers < size)
    return xp.where(is_inside, numbers, -1).astype(xp.int64)  # type: ignore[no-any-return]  # xp is Any


def linear_taps(xp: Any, places: Array, size: int) -> tuple[Tap, ...]:
    """The two elements beside each place along one dimension."""
    low = xp.floor(places)
    share, one = places - low, xp.ones_like(places)
    return (
        Tap(inside(xp, low, size), 1 - share, (-one,)),
        Tap(inside(xp, low + 1, size), share, (one,)),
    )


def combined(images: Array, along: Sequence[Sequence[Tap]], shape: Sequence[int]) -> Iterator[Tap]:
    """The taps over all dimensions of `shape`: rows in the image that `images` names for each place."""
    for taps in itertools.product(*along):
        rows, outside = images, images < 0
        for tap, size in zip(taps, shape, strict=True):
            rows = rows * size + tap.elements
            outside = outside | (tap.elements < 0)
        rows = rows - outside * (rows + 1)
        weights = [tap.weights for tap in taps]
        slopes = tuple(
            _product([tap.slopes[0], *weights[:axis], *weights[axis + 1 :]]) for axis, tap in enumerate(taps)
        )
        yield Tap(rows, _product(weights), slopes)


def _product(arrays: Sequence[Array]) -> Array:
    return reduce(mul, arrays)


def sampled(xp: Any, rows: Array, taps: Iterator[Tap]) -> Array:
    """(points, channels): the weighted sum of the rows of all taps."""
    result: Array | None = None
    for tap in taps:
        part = rows[tap.elements]
        part *= tap.weights.astype(rows.dtype, copy=False)[:, None]
        result = part if result is None else xp.add(result, part, out=result)
    assert result is not None, "there is a tap"
    return result


def spread(xp: Any, gradient: Array, taps: Iterator[Tap], count: int) -> Array:
    """The gradient of `count` rows, less the one of zeros, from that of the points (points, channels)."""
    result: Array = xp.zeros((count - 1, gradient.shape[1]), dtype=gradient.dtype)
    for tap in taps:
        share = gradient * tap.weights.astype(gradient.dtype, copy=False)[:, None]
        result += summed_rows(xp, share, tap.elements, count - 1)
    return result


def slopes(xp: Any, rows: Array, gradient: Array, taps: Iterator[Tap], rank: int) -> Array:
    """(points, dimensions): the gradient of each place."""
    result: Array = xp.zeros((gradient.shape[0], rank), dtype=gradient.dtype)
    for tap in taps:
        along = (rows[tap.elements] * gradient).sum(axis=1)
        for axis, slope in enumerate(tap.slopes):
            result[:, axis] += along * slope
    return result
