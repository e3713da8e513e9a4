"""Interpolation along one dimension: every result a weighted sum of a few elements, and its exact transpose.

What is summed is worked out on the host, dimension by dimension, from a few numbers; the sums run where the data is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_kernels.kernel import Array

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
