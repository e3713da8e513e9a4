"""Products of matrices, and contractions of several arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from weft_graph.shapes.einsum import Equation
from weft_kernels.kernel import Array

# --- The products that MatMul's two gradients are, with MatMul's vectors seen as matrices -----------------------------


def product(xp: Any, left: Array, right: Array, out: Array | None = None) -> Array:
    """The product of matrices or of stacks of them, in `out` where that has its shape, or a new array.

    A device is given a stack of matrices times one matrix as one product of all rows: CuPy would make an array of
    pointers to each of them, and one product of many rows is faster than many of few.
    """
    if out is not None and left.ndim > 1 and right.ndim > 1 and not _has_shape(out, left, right):
        out = None
    if xp is np or right.ndim != 2 or left.ndim < 3 or not left.flags.c_contiguous:
        return xp.matmul(left, right, out=out)  # type: ignore[no-any-return]  # xp is Any
    rows = None if out is None or not out.flags.c_contiguous else flat_rows(out)
    made = xp.matmul(flat_rows(left), right, out=rows)
    if out is not None and rows is not None:
        return out
    return made.reshape(*left.shape[:-1], right.shape[1])  # type: ignore[no-any-return]  # xp is Any


def _has_shape(out: Array, left: Array, right: Array) -> bool:
    """Whether `out` is of the shape of the product of stacks of matrices."""
    stack = left.shape[:-2]
    if stack != right.shape[:-2]:
        stack = np.broadcast_shapes(stack, right.shape[:-2])
    return tuple(out.shape) == (*stack, left.shape[-2], right.shape[-1])


def as_matrices(gradient: Array, left: Array, right: Array) -> tuple[Array, Array, Array]:
    """The three with at least two dimensions: a vector on the left is a row, one on the right a column."""
    if right.ndim == 1:
        right, gradient = right[:, None], gradient[..., None]
    if left.ndim == 1:
        left, gradient = left[None, :], gradient[..., None, :]
    return gradient, left, right


def sum_stack(xp: Any, product: Array, shape: tuple[int, ...]) -> Array:
    """A stack of matrices summed to `shape`, the operand's own shape."""
    lead = product.ndim - len(shape)
    if lead > 0:
        product = xp.sum(product, axis=tuple(range(lead)))
    stretched = tuple(axis for axis in range(len(shape)) if shape[axis] != product.shape[axis])
    return xp.sum(product, axis=stretched, keepdims=True) if stretched else product


def flat_rows(array: Array) -> Array:
    """A stack of matrices as one matrix of all their rows."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


# --- Sums of products over labelled dimensions, as matrix products: what Einsum is ------------------------------------


Labelled = tuple[str, Array]
"""An array and a letter for each of its dimensions."""


def contracted(xp: Any, equation: Equation, arrays: Sequence[Array]) -> Array:
    """The equation's result. Operands are joined two by two from the left, each two as one stack of matrix products."""
    sizes: dict[str, int] = {}
    for labels, array in zip(equation.operands, arrays, strict=True):
        for label, size in zip(labels, array.shape, strict=True):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    operands = [_plain(xp, pair, sizes) for pair in zip(equation.operands, arrays, strict=True)]

    def joined(left: Labelled, place: int) -> Labelled:
        later = "".join(labels for labels, _ in operands[place + 1 :]) + equation.result
        return _product(xp, left, operands[place], later)

    labels, array = _summed(xp, reduce(joined, range(1, len(operands)), operands[0]), equation.result)
    order = tuple(labels.index(label) for label in equation.result if label in labels)
    array = array.transpose(order)
    # A label that only dimensions of 1 have was dropped.
    return array.reshape(tuple(sizes[label] for label in equation.result))


def _plain(xp: Any, operand: Labelled, sizes: dict[str, int]) -> Labelled:
    """Each label once, by the diagonal of those with one label, and without dimensions of 1 that are broadcast."""
    labels, array = operand
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            array = xp.diagonal(array, axis1=first, axis2=second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + label
    dropped = tuple(axis for axis, size in enumerate(array.shape) if size == 1 and sizes[labels[axis]] != 1)
    if dropped:
        array = xp.squeeze(array, axis=dropped)
        labels = "".join(label for axis, label in enumerate(labels) if axis not in dropped)
    return labels, array


def _summed(xp: Any, operand: Labelled, needed: str) -> Labelled:
    """Without the dimensions that nothing else has."""
    labels, array = operand
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    if not axes:
        return operand
    return "".join(label for label in labels if label in needed), xp.sum(array, axis=axes, dtype=array.dtype)


def _product(xp: Any, left: Labelled, right: Labelled, later: str) -> Labelled:
    """The product of two operands, summed over the labels that both have and that nothing later needs."""
    left, right = _summed(xp, left, right[0] + later), _summed(xp, right, left[0] + later)
    both = [label for label in left[0] if label in right[0]]
    stack = [label for label in both if label in later]
    inner = [label for label in both if label not in later]
    rows = [label for label in left[0] if label not in both]
    columns = [label for label in right[0] if label not in both]
    sizes = dict(zip(left[0] + right[0], left[1].shape + right[1].shape, strict=True))

    def matrices(operand: Labelled, *groups: list[str]) -> Array:
        labels, array = operand
        order = tuple(labels.index(label) for group in groups for label in group)
        return array.transpose(order).reshape(tuple(math.prod(sizes[label] for label in group) for group in groups))

    product = xp.matmul(matrices(left, stack, rows, inner), matrices(right, stack, inner, columns))
    labels = [*stack, *rows, *columns]
    return "".join(labels), product.reshape(tuple(sizes[label] for label in labels))


# --- Products along the first dimension, of all elements up to each one, and their gradient ---------------------------


def products_before(xp: Any, data: Array) -> Array:
    """For each row the product of those before it, 1 for the first; a new array."""
    result: Array = xp.ones(data.shape, dtype=data.dtype)
    if len(data) > 1:
        result[1:] = xp.cumprod(data[:-1], axis=0, dtype=data.dtype)
    return result


def running_gradient(xp: Any, gradient: Array, data: Array) -> Array:
    """The gradient of `data` by that of the products of rows up to each one, itself included.

    A row's slope is the product of those before it, times the sum over every later product of its gradient times what
    it has of the rows between: nothing is divided, so zeros do no harm. The sums follow from each other, back to front.
    """
    after: Array = gradient.copy()
    for row in range(len(data) - 2, -1, -1):
        after[row] += data[row + 1] * after[row + 1]
    return after * products_before(xp, data)
