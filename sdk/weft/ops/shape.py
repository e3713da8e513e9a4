"""Operators that arrange elements in another way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.declared import element_type
from weft.expression import Expression, Operand, apply_many
from weft.ops.generic import Name, labelled, one
from weft_graph.types import DType


def flatten(x: Operand, axis: int = 1, *, name: Name = None) -> Expression:
    """A matrix: the dimensions before `axis` joined, and those from it on."""
    return one("Flatten", x, axis=axis, name=name)


def reshape(x: Operand, shape: Sequence[int] | Expression, *, name: Name = None) -> Expression:
    """The same elements in another shape. 0 keeps the dimension of that place, one -1 takes what is left.

    `("batch", 8, 8)` is `[0, 8, 8]` here: the batch keeps its place.
    """
    return one("Reshape", x, shape if isinstance(shape, Expression) else _int64(shape), name=name)


def transpose(x: Operand, perm: Sequence[int] | None = None, *, name: Name = None) -> Expression:
    """Dimension i of the result is dimension `perm[i]` of x; the order is reversed where `perm` is left out."""
    return one("Transpose", x, perm=perm, name=name)


def concat(inputs: Sequence[Operand], axis: int, *, name: Name = None) -> Expression:
    """The inputs one after another along `axis`; their other dimensions are alike."""
    return one("Concat", *inputs, axis=axis, name=name)


def squeeze(x: Operand, axes: int | Sequence[int] | None = None, *, name: Name = None) -> Expression:
    """x without the dimensions `axes`, which have length 1; without all such where left out."""
    return one("Squeeze", x, None if axes is None else _int64(axes), name=name)


def unsqueeze(x: Operand, axes: int | Sequence[int], *, name: Name = None) -> Expression:
    """x with dimensions of length 1 at the places `axes` of the result."""
    return one("Unsqueeze", x, _int64(axes), name=name)


def split(x: Operand, parts: int | Sequence[int], axis: int = 0, *, name: Name = None) -> tuple[Expression, ...]:
    """Pieces along `axis`: so many equal ones, of which the last may be shorter, or of these lengths."""
    count = parts if isinstance(parts, int) else len(parts)
    lengths = None if isinstance(parts, int) else _int64(parts)
    return apply_many("Split", (x, lengths), {"axis": axis}, requested=count, label=labelled(name, "Split"))


def slice(  # noqa: A001 - ONNX's word
    x: Operand,
    starts: int | Sequence[int],
    ends: int | Sequence[int],
    axes: int | Sequence[int] | None = None,
    steps: int | Sequence[int] | None = None,
    *,
    name: Name = None,
) -> Expression:
    """Along each of `axes` (the first ones where left out) the elements from a start to before an end, by a step.

    Bounds count as in Python, also from the end.
    """
    lists = (None if numbers is None else _int64(numbers) for numbers in (starts, ends, axes, steps))
    return one("Slice", x, *lists, name=name)


def pad(
    x: Operand,
    pads: Sequence[int],
    value: Operand | None = None,
    *,
    mode: str = "constant",
    axes: int | Sequence[int] | None = None,
    name: Name = None,
) -> Expression:
    """Elements before and after dimensions: `pads` are the beginnings of all (or of `axes`), then the ends.

    `mode` is constant (`value`, else 0), edge, reflect or wrap.
    """
    return one("Pad", x, _int64(pads), value, None if axes is None else _int64(axes), mode=mode, name=name)


def expand(x: Operand, shape: Sequence[int], *, name: Name = None) -> Expression:
    """x, broadcast together with `shape`."""
    return one("Expand", x, _int64(shape), name=name)


def tile(x: Operand, repeats: Sequence[int], *, name: Name = None) -> Expression:
    """Each dimension as often as `repeats` says, one copy after the other."""
    return one("Tile", x, _int64(repeats), name=name)


def trilu(x: Operand, k: int = 0, *, upper: bool = True, name: Name = None) -> Expression:
    """The upper or lower triangle of matrices (..., m, n), from diagonal `k` on; 0 elsewhere."""
    return one("Trilu", x, np.asarray(k, dtype=np.int64), upper=int(upper), name=name)


def one_hot(indices: Operand, depth: int, *, dtype: DType | str = DType.FLOAT32, name: Name = None) -> Expression:
    """Along a new last dimension of `depth` elements 1 at the index, 0 elsewhere."""
    values = np.array([0, 1], dtype=element_type(dtype, "one_hot").numpy)
    return one("OneHot", indices, np.asarray(depth, dtype=np.int64), values, name=name)


def _int64(values: int | Sequence[int]) -> np.ndarray:
    return np.atleast_1d(np.asarray(values, dtype=np.int64))
