"""How many elements Pad adds before and after each dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft_graph.dimensions.amounts import Amount, as_dim, plus
from weft_graph.dimensions.dims import Dim
from weft_graph.shapes.axes import normalised
from weft_graph.types import Shape

MODES = ("constant", "reflect", "edge", "wrap")

Sides = tuple[tuple[int, int], ...]
"""For each dimension: elements added before it and after it; a negative number takes elements away."""


OpenSides = tuple[tuple[Amount, Amount], ...]
"""The same as far as it is known before a step."""


def sides_of(rank: int, pads: Sequence[int], axes: Sequence[int] | None = None) -> Sides:
    """The pads of each dimension, of all of them or of `axes`. Raises ValueError where the lists do not fit."""
    sides = [(0, 0)] * rank
    along = _along(rank, len(pads), range(rank) if axes is None else axes)
    for place, axis in enumerate(along):
        sides[axis] = pads[place], pads[place + len(along)]
    return tuple(sides)


def open_sides_of(rank: int, pads: Sequence[Amount], axes: Sequence[Amount] | None = None) -> OpenSides:
    """The same before a step; nothing is known of any dimension if an axis is not. Raises ValueError likewise."""
    given = range(rank) if axes is None else axes
    known = [axis for axis in given if isinstance(axis, int)]
    if len(known) < len(given):
        _check_count(len(pads), len(given))
        return ((None, None),) * rank
    sides: list[tuple[Amount, Amount]] = [(0, 0)] * rank
    along = _along(rank, len(pads), known)
    for place, axis in enumerate(along):
        sides[axis] = pads[place], pads[place + len(along)]
    return tuple(sides)


def _along(rank: int, count: int, axes: Sequence[int]) -> list[int]:
    along = [normalised(axis, rank) for axis in axes]
    if len(set(along)) < len(along):
        raise ValueError(f"axes {list(axes)} name a dimension twice")
    _check_count(count, len(along))
    return along


def _check_count(pads: int, axes: int) -> None:
    if pads != 2 * axes:
        raise ValueError(f"{pads} pads must be two numbers for each of {axes} dimensions")


def padded(shape: Sequence[int], sides: Sides, mode: str) -> tuple[int, ...]:
    """The shape with the pads. Raises ValueError where one takes away too much, or has nothing to repeat."""
    return tuple(_length(dim, begin, end, mode) for dim, (begin, end) in zip(shape, sides, strict=True))


def open_padded(shape: Shape, sides: OpenSides, mode: str, unknown: Callable[[], Dim]) -> Shape:
    """The same before a step; `unknown` names a dimension of which nothing can be said."""
    dims: list[Dim] = []
    for dim, (begin, end) in zip(shape, sides, strict=True):
        if isinstance(dim, int) and isinstance(begin, int) and isinstance(end, int):
            dims.append(_length(dim, begin, end, mode))
        else:
            length = plus(dim, plus(begin, end))
            dims.append(unknown() if length is None else as_dim(length))
    return tuple(dims)


def _length(dim: int, begin: int, end: int, mode: str) -> int:
    if begin == end == 0:
        return dim
    kept = dim + min(begin, 0) + min(end, 0)
    if kept < 0:
        raise ValueError(f"pads {begin} and {end} take away more than the {dim} elements there are")
    if mode != "constant" and kept == 0 and max(begin, end) > 0:
        raise ValueError(f"mode {mode!r} has nothing to repeat in a dimension without elements")
    return kept + max(begin, 0) + max(end, 0)


def inside(sides: Sides) -> tuple[slice, ...]:
    """Where what is kept of the data lies in the padded form."""
    return tuple(slice(max(begin, 0), -end if end > 0 else None) for begin, end in sides)


def kept(sides: Sides) -> tuple[slice, ...]:
    """What negative pads leave of the data."""
    return tuple(slice(-begin if begin < 0 else 0, end if end < 0 else None) for begin, end in sides)
