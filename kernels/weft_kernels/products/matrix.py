"""The products that MatMul's two gradients are, with MatMul's vectors seen as matrices."""

from __future__ import annotations

import math
from typing import Any

from weft_kernels.kernel import Array


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
