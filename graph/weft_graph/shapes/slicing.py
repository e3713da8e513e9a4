"""The parts of a tensor that Slice and Split take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft_graph.shapes.axes import normalised
from weft_graph.shapes.dims import Dim
from weft_graph.types import Shape

_WHOLE: Final = (1 << 31) - 1
"""An end from which on a slice is taken to mean all that there is, however long that will be."""


def slices_of(
    rank: int,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> tuple[slice, ...]:
    """A slice for each dimension; its bounds count and clamp as Python's do, which are ONNX's.

    Raises ValueError for lists of several lengths, a step of 0, and an axis outside the rank or named twice.
    """
    along = range(len(starts)) if axes is None else axes
    by = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(along) == len(by):
        raise ValueError(f"{len(starts)} starts, {len(ends)} ends, {len(along)} axes and {len(by)} steps do not match")
    parts = [slice(None)] * rank
    taken: set[int] = set()
    for start, end, axis, step in zip(starts, ends, along, by, strict=True):
        place = normalised(axis, rank)
        if place in taken:
            raise ValueError(f"axes {list(along)} name dimension {place} twice")
        if step == 0:
            raise ValueError(f"the step along axis {axis} is 0")
        taken.add(place)
        parts[place] = slice(start, end, step)
    return tuple(parts)


def sliced(shape: Shape, parts: tuple[slice, ...]) -> Shape:
    """The shape of those parts. Raises ValueError where part of a dimension is taken that is not yet a number."""
    return tuple(_length(dim, part) for dim, part in zip(shape, parts, strict=True))


def _length(dim: Dim, part: slice) -> Dim:
    if isinstance(dim, int):
        return len(range(*part.indices(dim)))
    forwards = part.step in {None, 1} and part.start in {None, 0} and (part.stop is None or part.stop >= _WHOLE)
    backwards = part.step == -1 and (part.start == -1 or part.start >= _WHOLE) and part.stop <= -_WHOLE
    if forwards or backwards:
        return dim
    raise ValueError(f"dimension {dim!r} is taken whole or not at all; its length is not known before a step")


def split_sizes(dim: Dim, parts: int, sizes: Sequence[int] | None) -> tuple[Dim, ...]:
    """The lengths of `parts` pieces of a dimension: those given, or equal ones, of which the last may be shorter.

    Raises ValueError where they do not make up the dimension, or where it is not yet a number and not left whole.
    """
    if sizes is not None:
        if len(sizes) != parts or min(sizes, default=0) < 0:
            raise ValueError(f"split {list(sizes)} must be {parts} numbers, none below 0")
        if sum(sizes) != dim:
            raise ValueError(f"split {list(sizes)} adds up to {sum(sizes)}, and the dimension is {dim}")
        return tuple(sizes)
    if parts == 1:
        return (dim,)
    if not isinstance(dim, int):
        raise ValueError(f"dimension {dim!r} cannot be split; its length is not known before a step")
    each = -(-dim // parts)
    last = dim - each * (parts - 1)
    if last < 0:
        raise ValueError(f"a dimension of {dim} does not fall into {parts} parts of {each}")
    return (*(each,) * (parts - 1), last)
