"""The parts of a tensor that Slice and Split take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from weft_graph.dimensions.amounts import Amount, added, as_dim, is_natural, minus, over, plus, smaller, times
from weft_graph.dimensions.dims import Dim, agree, quotient, unknown_of
from weft_graph.shapes.axes import normalised
from weft_graph.types import Shape

_WHOLE: Final = (1 << 31) - 1
"""An end from which on a slice is taken to mean all that there is, however long that will be."""


_T = TypeVar("_T", bound=Amount)

Bounds = tuple[Amount, Amount, Amount]
"""Start, end and step along one dimension, as far as they are known before a step."""


def slices_of(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> tuple[slice, ...]:
    """A slice for each dimension of `shape`, whose bounds count and clamp as ONNX's do.

    Raises ValueError for lists of several lengths, a step of 0, and an axis outside the rank or named twice.
    """
    along, by = _along(starts, ends, axes, steps)
    parts = [slice(None)] * len(shape)
    for place, start, end, step in zip(_places(len(shape), along, by), starts, ends, by, strict=True):
        parts[place] = _slice(shape[place], start, end, step)
    return tuple(parts)


def _slice(length: int, start: int, end: int, step: int) -> slice:
    """Python clamps as ONNX does but for a start before the first element, from which ONNX goes back: it is the first.

    Of no elements there is no first.
    """
    return slice(0 if step < 0 and start < -length < 0 else start, end, step)


def bounds_of(
    rank: int,
    starts: Sequence[Amount],
    ends: Sequence[Amount],
    axes: Sequence[Amount] | None = None,
    steps: Sequence[Amount] | None = None,
) -> tuple[Bounds | None, ...]:
    """For each dimension what is taken of it, None where it is whole; nothing is known of any if an axis is not known.

    Raises ValueError as `slices_of` does.
    """
    along, by = _along(starts, ends, axes, steps)
    known = [axis for axis in along if isinstance(axis, int)]
    if len(known) < len(along):
        return ((None, None, None),) * rank
    taken: list[Bounds | None] = [None] * rank
    for place, start, end, step in zip(_places(rank, known, by), starts, ends, by, strict=True):
        taken[place] = (start, end, step)
    return tuple(taken)


def _along(
    starts: Sequence[_T], ends: Sequence[_T], axes: Sequence[_T] | None, steps: Sequence[_T] | None
) -> tuple[Sequence[_T | int], Sequence[_T | int]]:
    """The axes and steps, one for each start."""
    along = range(len(starts)) if axes is None else axes
    by = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(along) == len(by):
        raise ValueError(f"{len(starts)} starts, {len(ends)} ends, {len(along)} axes and {len(by)} steps do not match")
    return along, by


def _places(rank: int, axes: Sequence[int], steps: Sequence[Amount]) -> list[int]:
    """The axes counted from the front, in their order."""
    places: list[int] = []
    for axis, step in zip(axes, steps, strict=True):
        place = normalised(axis, rank)
        if place in places:
            raise ValueError(f"axes {list(axes)} name dimension {place} twice")
        if step == 0:
            raise ValueError(f"the step along axis {axis} is 0")
        places.append(place)
    return places


def sliced(shape: Shape, taken: Sequence[Bounds | None], unknown: Callable[[], Dim]) -> Shape:
    """The shape of those parts; `unknown` names a dimension of which nothing can be said."""
    lengths = (dim if bounds is None else _length(dim, *bounds) for dim, bounds in zip(shape, taken, strict=True))
    return tuple(unknown() if length is None else length for length in lengths)


def _length(dim: Dim, start: Amount, end: Amount, step: Amount) -> Dim | None:
    if start is None or end is None or not isinstance(step, int):
        return None
    numbers = [bound for bound in (start, end) if isinstance(bound, int)]
    if isinstance(dim, int) and len(numbers) == 2:
        return len(range(*_slice(dim, numbers[0], numbers[1], step).indices(dim)))
    if step == -1 and len(numbers) == 2 and (start == -1 or numbers[0] >= _WHOLE) and numbers[1] <= -_WHOLE:
        return dim
    low, high = _low(dim, start), _high(dim, start, end)
    length = minus(high, low)
    if step < 0 or length is None:
        return unknown_of("slice", dim, start, end, step)
    if isinstance(length, int):
        length = max(length, 0)
    count = length if step == 1 else over(plus(length, step - 1), step)
    return None if count is None else as_dim(count)


def _low(dim: Dim, start: int | str) -> Amount:
    """Where the part begins; a dimension is taken to be as long as what is left out at its front."""
    if isinstance(start, int) and start < 0:
        return minus(dim, smaller(-start, dim))
    return start if is_natural(start) else None


def _high(dim: Dim, start: int | str, end: int | str) -> Amount:
    """Where the part ends; a dimension is taken to be as long as what is left out at its end, and as an end by name."""
    if isinstance(end, int) and end < 0:
        return minus(dim, -end)
    if (isinstance(end, int) and end >= _WHOLE) or is_natural(minus(end, dim)):
        return dim
    if isinstance(end, str) or is_natural(minus(dim, end)):
        return end
    return smaller(end, dim) if start == 0 else None


def split_sizes(dim: Dim, parts: int, sizes: Sequence[Amount] | None) -> tuple[Dim | None, ...]:
    """The lengths of `parts` pieces of a dimension: those given, or equal ones, of which the last may be shorter.

    None for one of which nothing is known before a step. Raises ValueError where they do not make up the dimension.
    """
    if sizes is not None:
        if len(sizes) != parts or any(isinstance(size, int) and size < 0 for size in sizes):
            raise ValueError(f"split {list(sizes)} must be {parts} numbers, none below 0")
        if None not in sizes and not agree(as_dim(added(sizes) or 0), dim):
            raise ValueError(f"split {list(sizes)} adds up to {added(sizes)}, and the dimension is {dim}")
        return tuple(None if size is None else as_dim(size) for size in sizes)
    if parts == 1:
        return (dim,)
    even = quotient((dim,), (parts,))
    each = over(plus(dim, parts - 1), parts) if even is None else even
    last = minus(dim, times(each, parts - 1))
    if each is None or last is None or (isinstance(last, int) and last < 0):
        raise ValueError(f"a dimension of {dim} does not fall into {parts} parts of {each}")
    return (*(as_dim(each),) * (parts - 1), as_dim(last))


def split_ends(length: int, parts: int, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Where the pieces of a dimension of `length` begin, and where the last one ends. Raises as `split_sizes` does."""
    return tuple(itertools.accumulate((int(size or 0) for size in split_sizes(length, parts, sizes)), initial=0))
