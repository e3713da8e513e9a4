"""Values between elements: taps, interpolation, grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.element_types import statistics_dtype
from weft_kernels.indexing import summed_rows
from weft_kernels.kernel import Array

# --- The cubic of Keys 1981 through four elements: its weight at a distance, and the slope of that --------------------


def cubic_weight(xp: Any, distance: Array, a: float) -> Array:
    """The weight of an element at `distance`, on either side; 0 from 2 on. `a` is the slope at 1."""
    t = xp.abs(distance)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return xp.where(t <= 1, near, xp.where(t < 2, far, 0))  # type: ignore[no-any-return]  # xp is Any


def cubic_slope(xp: Any, distance: Array, a: float) -> Array:
    """The derivative of `cubic_weight` by `distance`."""
    t = xp.abs(distance)
    near = (3 * (a + 2) * t - 2 * (a + 3)) * t
    far = (3 * a * t - 10 * a) * t + 8 * a
    return xp.sign(distance) * xp.where(t <= 1, near, xp.where(t < 2, far, 0))  # type: ignore[no-any-return]


# --- Values at places between elements: sums of a few rows around each place, and the gradients of rows and places ----
# An input (images, channels, spatial ...) is laid out as rows, one for each element of the spatial dimensions, with
# all channels in it; the last row is zeros, and -1, which names it, is what lies outside.


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


# --- Interpolation along one dimension: every result a weighted sum of a few elements, and its exact transpose --------
# What is summed is worked out on the host, dimension by dimension, from a few numbers; the sums run where the data
# is.


MOST_TAPS: Final = 32
"""Elements a result up to which they are gathered one after the other; beyond, a matrix product has them at once."""

MATRIX_ELEMENTS: Final = 1 << 22
"""Elements of a matrix that is made at once: the product goes in blocks of results."""


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Result `results[i]` is the sum of `weights[i]` times element `elements[i]`: parallel lists, by result.

    `count` results are made of `size` elements. Host arrays, int64 and float64.
    """

    size: int
    count: int
    results: Array
    elements: Array
    weights: Array

    @property
    def transposed(self) -> Interpolation:
        """From a gradient of the results to that of the elements."""
        order = np.argsort(self.elements, kind="stable")
        return Interpolation(self.count, self.size, self.elements[order], self.results[order], self.weights[order])

    @property
    def most_taps(self) -> int:
        """Elements of the result that has most."""
        return int(np.bincount(self.results, minlength=1).max()) if self.count else 0

    def taps(self) -> tuple[Array, Array]:
        """(elements, weights), each (results, most taps): what a result lacks is its own last with weight 0."""
        most = max(self.most_taps, 1)
        place = np.arange(len(self.results)) - np.searchsorted(self.results, self.results)
        elements = np.zeros((self.count, most), dtype=np.int64)
        weights = np.zeros((self.count, most))
        last = np.searchsorted(self.results, np.arange(self.count), side="right") - 1
        if len(self.elements):
            elements[:] = self.elements[np.maximum(last, 0)][:, None]
        elements[self.results, place] = self.elements
        weights[self.results, place] = self.weights
        return elements, weights

    def matrix(self, first: int, stop: int) -> Array:
        """Results `first` to before `stop` as a matrix (results, elements)."""
        part = slice(*np.searchsorted(self.results, [first, stop]))
        made = np.zeros((stop - first, self.size))
        np.add.at(made, (self.results[part] - first, self.elements[part]), self.weights[part])
        return made


def interpolated(xp: Any, array: Array, axis: int, along: Interpolation) -> Array:
    """The array with the results of `along` in the place of dimension `axis`. Of its element type."""
    if along.count == 0 or along.size == 0:
        return xp.zeros(_with(array.shape, axis, along.count), dtype=array.dtype)  # type: ignore[no-any-return]
    if along.most_taps > MOST_TAPS:
        return _by_matrix(xp, array, axis, along)
    elements, weights = along.taps()
    result: Array | None = None
    for tap in range(elements.shape[1]):
        part = _taken(xp, array, axis, elements[:, tap])
        if np.any(weights[:, tap] != 1):
            part = part * _along(xp, weights[:, tap], axis, array)
        if result is None:
            result = part
        elif tap == 1:
            result = result + part
        else:
            result += part
    assert result is not None, "there is at least one tap"
    return result


def _by_matrix(xp: Any, array: Array, axis: int, along: Interpolation) -> Array:
    result: Array = xp.empty(_with(array.shape, axis, along.count), dtype=array.dtype)
    moved, target = xp.moveaxis(array, axis, -1), xp.moveaxis(result, axis, -1)
    step = max(1, MATRIX_ELEMENTS // along.size)
    for first in range(0, along.count, step):
        stop = min(first + step, along.count)
        matrix = xp.asarray(along.matrix(first, stop).T, dtype=array.dtype)
        target[..., first:stop] = xp.matmul(moved, matrix)
    return result


def _taken(xp: Any, array: Array, axis: int, elements: Array) -> Array:
    """The elements along an axis; a view where they are equally far apart."""
    steps = np.unique(np.diff(elements))
    before = (slice(None),) * axis
    if len(elements) == 1 or (len(steps) == 1 and steps[0] > 0):
        step = int(steps[0]) if len(steps) else 1
        return array[(*before, slice(int(elements[0]), int(elements[-1]) + 1, step))]
    return xp.take(array, xp.asarray(elements), axis=axis)  # type: ignore[no-any-return]  # xp is Any


def _along(xp: Any, numbers: Array, axis: int, array: Array) -> Array:
    """A number for each place of dimension `axis`, of the array's element type, so that it broadcasts."""
    shape = (-1, *(1,) * (array.ndim - 1 - axis))
    return xp.asarray(numbers.reshape(shape), dtype=array.dtype)  # type: ignore[no-any-return]  # xp is Any


def _with(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    return (*shape[:axis], count, *shape[axis + 1 :])


# --- Where GridSample reads: coordinates from -1 to 1 as places among elements, and what is beyond the edges ----------


CUBIC_A: Final = -0.75


def grid_taps(xp: Any, grid: Array, shape: Sequence[int], attributes: Mapping[str, AttributeValue]) -> Iterator[Tap]:
    """The taps of every place of `grid` (images, places ..., dimensions) in inputs of spatial `shape`."""
    coordinates = grid.astype(statistics_dtype(xp, grid), copy=False).reshape(-1, len(shape))
    aligned = bool(as_int(attributes["align_corners"]))
    # The grid has the last dimension's coordinate first.
    along = [
        _taps(xp, coordinates[:, len(shape) - 1 - axis], size, attributes, aligned=aligned)
        for axis, size in enumerate(shape)
    ]
    images = xp.repeat(xp.arange(grid.shape[0]), coordinates.shape[0] // max(grid.shape[0], 1))
    return combined(images, along, shape)


def _taps(
    xp: Any, coordinate: Array, size: int, attributes: Mapping[str, AttributeValue], *, aligned: bool
) -> tuple[Tap, ...]:
    """Along one dimension; slopes are those by the coordinate."""
    scale = (size - 1) / 2 if aligned else size / 2
    places = (coordinate + 1) * scale - (0 if aligned else 0.5)
    mode, padding = str(attributes["mode"]), str(attributes["padding_mode"])
    bounds = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if mode in {"cubic", "bicubic"}:
        return tuple(_cubic_taps(xp, places, size, padding, bounds=bounds, scale=scale))
    places, slope = _padded(xp, places, size, padding, bounds)
    slope = slope * scale
    if mode == "nearest":
        one = xp.ones_like(places)
        return (Tap(inside(xp, xp.rint(places), size), one, (one * 0,)),)
    return tuple(Tap(tap.elements, tap.weights, (tap.slopes[0] * slope,)) for tap in linear_taps(xp, places, size))


def _cubic_taps(
    xp: Any, places: Array, size: int, padding: str, *, bounds: tuple[float, float], scale: float
) -> Iterator[Tap]:
    """Four elements; one beyond the edge is another, or none, while its weight stays."""
    first = xp.floor(places) - 1
    for step in range(4):
        element = first + step
        distance = places - element
        real, _ = _padded(xp, element, size, padding, bounds)
        weight, slope = cubic_weight(xp, distance, CUBIC_A), cubic_slope(xp, distance, CUBIC_A)
        yield Tap(inside(xp, xp.rint(real), size), weight, (slope * scale,))


def _padded(xp: Any, places: Array, size: int, padding: str, bounds: tuple[float, float]) -> tuple[Array, Array]:
    """(places once those beyond the edges are moved, their slope by the places that were asked for)."""
    slope = xp.ones_like(places)
    if padding == "zeros":
        return places, slope
    if padding == "reflection":
        places, slope = _reflected(xp, places, *bounds)
    is_within = (places > 0) & (places < size - 1)
    return xp.clip(places, 0, max(size - 1, 0)), slope * is_within


def _reflected(xp: Any, places: Array, low: float, high: float) -> tuple[Array, Array]:
    """Thrown back at `low` and `high` as often as it takes, and whether that turned the direction: 1 or -1."""
    span = high - low
    if span <= 0:
        return places * 0, places * 0
    beyond = places - low
    turns = xp.floor(beyond / span)
    rest = beyond - turns * span
    is_odd = xp.remainder(turns, 2) == 1
    return low + xp.where(is_odd, span - rest, rest), 1 - 2 * is_odd.astype(places.dtype)
