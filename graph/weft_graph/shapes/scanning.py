"""Along which axes, and from which end, a loop takes its inputs apart and puts its outputs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft_graph.attributes import as_ints
from weft_graph.dimensions.dims import Dim, agree, settled
from weft_graph.schema import InferContext
from weft_graph.shapes.axes import normalised
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Scanned:
    """A value that is taken apart, or put together, turn by turn along `axis`; `backwards` begins at its end."""

    axis: int
    backwards: bool

    def place(self, turn: int, turns: int) -> int:
        """The index along the axis of this turn's part."""
        return turns - 1 - turn if self.backwards else turn

    def part(self, type_: TensorType) -> TensorType:
        """The type of a turn's part of a value."""
        return TensorType(type_.dtype, (*type_.shape[: self.axis], *type_.shape[self.axis + 1 :]))

    def whole(self, part: TensorType, turns: Dim) -> TensorType:
        """The type of the value that parts make."""
        return TensorType(part.dtype, (*part.shape[: self.axis], turns, *part.shape[self.axis :]))


def scanned(axes: Sequence[int], directions: Sequence[int], ranks: Sequence[int]) -> tuple[Scanned, ...]:
    """For each value of these ranks, whole; empty lists stand for zeros."""
    return tuple(
        Scanned(normalised(axes[place], rank) if axes else 0, bool(directions[place]) if directions else False)
        for place, rank in enumerate(ranks)
    )


def infer_scanned(context: InferContext, names: tuple[str, str], ranks: Sequence[int]) -> tuple[Scanned, ...]:
    """The same from the attributes `names`, axes and directions. Raises ShapeError where they do not fit."""
    axes, directions = (as_ints(context.attribute(name) or ()) for name in names)
    for name, numbers in zip(names, (axes, directions), strict=True):
        if numbers and len(numbers) != len(ranks):
            raise context.shape_error(f"{name} has {len(numbers)} numbers for {len(ranks)} values")
    if not set(directions) <= {0, 1}:
        raise context.shape_error(f"{names[1]} {list(directions)} must be 0, from the front, or 1, from the back")
    for place, rank in enumerate(ranks):
        axis = axes[place] if axes else 0
        if not -rank <= axis < rank:
            raise context.shape_error(f"{names[0]}: value {place} has {rank} dimensions, and none is {axis}")
    return scanned(axes, directions, ranks)


def infer_turns(context: InferContext, types: Sequence[TensorType], along: Sequence[Scanned]) -> Dim:
    """How many parts the values have, which must be as many in each. Raises ShapeError."""
    turns: Dim | None = None
    for type_, how in zip(types, along, strict=True):
        here = type_.shape[how.axis]
        if turns is not None and not agree(turns, here):
            raise context.shape_error(f"what is scanned must be as long in each value: {turns} and {here} differ")
        turns = here if turns is None else settled(turns, here)
    if turns is None:
        raise context.shape_error("nothing is scanned: the number of turns is not known")
    return turns
