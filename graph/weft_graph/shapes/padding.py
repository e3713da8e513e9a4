"""How many elements Pad adds before and after each dimension."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.shapes.axes import normalised
from weft_graph.shapes.dims import Dim, total
from weft_graph.types import Shape

MODES = ("constant", "reflect", "edge", "wrap")

Sides = tuple[tuple[int, int], ...]
"""For each dimension: elements added before it and after it; a negative number takes elements away."""


def sides_of(rank: int, pads: Sequence[int], axes: Sequence[int] | None = None) -> Sides:
    """The pads of each dimension, of all of them or of `axes`. Raises ValueError where the lists do not fit."""
    along = [normalised(axis, rank) for axis in (range(rank) if axes is None else axes)]
    if len(set(along)) < len(along):
        raise ValueError(f"axes {list(axes or ())} name a dimension twice")
    if len(pads) != 2 * len(along):
        raise ValueError(f"pads {list(pads)} must be two numbers for each of {len(along)} dimensions")
    sides = [(0, 0)] * rank
    for place, axis in enumerate(along):
        sides[axis] = pads[place], pads[place + len(along)]
    return tuple(sides)


def padded(shape: Shape, sides: Sides, mode: str) -> Shape:
    """The shape with the pads. Raises ValueError where one takes away too much, or has nothing to repeat."""
    return tuple(_length(dim, begin, end, mode) for dim, (begin, end) in zip(shape, sides, strict=True))


def _length(dim: Dim, begin: int, end: int, mode: str) -> Dim:
    if begin == end == 0:
        return dim
    if not isinstance(dim, int):
        if mode == "constant" and min(begin, end) >= 0:
            return total((dim, begin, end))
        raise ValueError(f"dimension {dim!r} cannot be padded so; its length is not known before a step")
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
