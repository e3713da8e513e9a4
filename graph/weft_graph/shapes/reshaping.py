"""The shape that Reshape gives: 0 copies a dimension, -1 is what is left."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.dimensions.dims import Dim, agree, is_unknown, product, quotient, unknown_of
from weft_graph.types import Shape


def reshaped(shape: Shape, target: Sequence[Dim], *, allow_zero: bool) -> Shape:
    """`shape` reshaped to `target`. Raises ValueError, with both, where they do not hold as many elements.

    Dimensions that are copied cancel on both sides before -1 is worked out, so that it is known although one of them
    is 0 or a name.
    """
    shown = f"{list(shape)} cannot be reshaped to {list(target)}"
    if any(isinstance(dim, int) and dim < -1 for dim in target) or list(target).count(-1) > 1:
        raise ValueError(f"{shown}: dimensions are -1 (once), 0 or more")
    if allow_zero and 0 in target and -1 in target:
        raise ValueError(f"{shown}: with allowzero a shape has 0 or -1, not both")
    copied = set() if allow_zero else {axis for axis, dim in enumerate(target) if dim == 0}
    if copied and max(copied) >= len(shape):
        raise ValueError(f"{shown}: there is no dimension {max(copied)} to copy")
    whole = [dim for axis, dim in enumerate(shape) if axis not in copied]
    part = [dim for axis, dim in enumerate(target) if axis not in copied and dim != -1]
    left: Dim | None = 1
    if -1 in target:
        left = quotient(whole, part)
        if left is None and any(map(is_unknown, (*whole, *part))):
            left = unknown_of("quotient", *whole, *part)
    elif not agree(product(whole), product(part)):
        left = None
    if left is None:
        raise ValueError(f"{shown}: {product(shape)} elements do not fit")
    return tuple(shape[axis] if axis in copied else left if dim == -1 else dim for axis, dim in enumerate(target))
