"""Where the elements of a value lie in memory: strides, counted in elements, as pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from weft_graph.schema import MemoryOrder, Strides
from weft_graph.types import Shape

NO_VIEW: Final[Strides] = (-1 << 62,)
"""What a view's rule gives where the output cannot lie in its input's memory; no strides are this."""

Sizes = tuple[int, ...]


def numbers(shape: Shape) -> Sizes | None:
    """The shape, where every dimension of it is a number."""
    sizes = tuple(dim for dim in shape if isinstance(dim, int))
    return sizes if len(sizes) == len(shape) else None


def in_rows(shape: Sizes) -> Strides:
    """The strides of C's order."""
    return in_order(shape, range(len(shape)))


def in_order(shape: Sizes, axes: Iterable[int]) -> Strides:
    """The strides of an array without gaps whose dimensions lie in the order `axes`, the slowest first."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(tuple(axes)):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def order_of(shape: Sizes, strides: Strides) -> tuple[int, ...] | None:
    """The dimensions of an array without gaps, the slowest first; None where it has gaps or repeats elements."""
    axes = tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis)))
    return axes if same_places(shape, strides, in_order(shape, axes)) else None


def same_places(shape: Sizes, left: Strides, right: Strides) -> bool:
    """Whether both put each element at the same place: strides of dimensions of 1 do not matter."""
    return math.prod(shape) == 0 or all(size == 1 or a == b for size, a, b in zip(shape, left, right, strict=True))


def made(order: MemoryOrder, shape: Sizes, reads: Iterable[tuple[Sizes, Strides | None]]) -> Strides:
    """The strides in which an operator of that order makes an output; `reads` are its inputs' shapes and strides."""
    if order is MemoryOrder.CHANNELS and len(shape) > 1:
        return in_order(shape, (1, 0, *range(2, len(shape))))
    if order is MemoryOrder.INPUT:
        for read, strides in reads:
            axes = None if strides is None or read != shape else order_of(shape, strides)
            if axes is not None:
                return in_order(shape, axes)
    return in_rows(shape)


def reshaped(shape: Sizes, strides: Strides, target: Sizes) -> Strides:
    """The strides of the same elements, in their order, in the shape `target`; NO_VIEW where only a copy has it.

    Runs of dimensions that lie behind each other without a gap may be cut anew; nothing else can.
    """
    if math.prod(shape) == 0:
        return in_rows(target)
    result = [1] * len(target)
    dims = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    wanted = [axis for axis, size in enumerate(target) if size != 1]
    at = 0
    while at < len(dims):
        old, new = [dims[at]], [wanted[0]]
        at, wanted = at + 1, wanted[1:]
        have, want = old[0][0], target[new[0]]
        while have != want:
            if have < want:
                old.append(dims[at])
                have, at = have * dims[at][0], at + 1
            else:
                new.append(wanted[0])
                want, wanted = want * target[wanted[0]], wanted[1:]
        if len(old) > 1 and any(a[1] != b[1] * b[0] for a, b in pairwise(old)):
            return NO_VIEW
        step = old[-1][1]
        for axis in reversed(new):
            result[axis] = step
            step *= target[axis]
    return tuple(result)


def permuted(strides: Strides, axes: Sequence[int]) -> Strides:
    return tuple(strides[axis] for axis in axes)


def expanded(shape: Sizes, strides: Strides, target: Sizes) -> Strides:
    """The strides of a broadcast view: dimensions that are repeated lie on one place."""
    lead = len(target) - len(shape)
    kept = (0 if size != wide else step for size, step, wide in zip(shape, strides, target[lead:], strict=True))
    return (*(0,) * lead, *kept)
