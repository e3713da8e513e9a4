"""Bodies of control flow: their types, and what scans stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft_graph.attributes import as_ints
from weft_graph.dimensions import Dim, agree, is_unknown, settled
from weft_graph.ir import Subgraph
from weft_graph.schema import InferContext
from weft_graph.shapes.broadcasting import normalised
from weft_graph.types import TensorType


def infer_reads(context: InferContext, first: int, count: int, body: Subgraph) -> tuple[list[TensorType], ...]:
    """Types of the node's inputs from `first` on: the `count` that the body has inputs for, and what it captures.

    Raises ShapeError where the node has more or fewer.
    """
    captured = len(body.captured)
    given = len(context.node.inputs)
    if count < 0 or given != first + count + captured:
        raise context.shape_error(
            f"its body has {len(body.inputs)} inputs and captures {captured} values, which makes "
            f"{first + max(count, 0) + captured} inputs of the node; it has {given}"
        )
    types = [context.input(index) for index in range(first, given)]
    return types[:count], types[count:]


def joined(context: InferContext, first: TensorType, second: TensorType, what: str) -> TensorType:
    """The type of a value that is of one of the two types; a dimension in which they differ is unknown.

    Raises DTypeError where their element types differ, and ShapeError where their ranks do.
    """
    if first.dtype != second.dtype:
        raise context.dtype_error(f"{what} is {first} in one way and {second} in another; element types must be one")
    if first.rank != second.rank:
        raise context.shape_error(f"{what} is {first} in one way and {second} in another; ranks must be one")
    dims = (a if _stays(a, b) else context.unknown() for a, b in zip(first.shape, second.shape, strict=True))
    return TensorType(first.dtype, tuple(dims))


def kept(context: InferContext, before: TensorType, after: TensorType, what: str) -> TensorType:
    """The type of a value that a turn must leave as it was. Raises ShapeError or DTypeError where it does not."""
    if before.dtype != after.dtype:
        raise context.dtype_error(f"{what} begins as {before}, and the body makes it {after}")
    if not before.agrees_with(after):
        raise context.shape_error(f"{what} begins as {before}, and the body makes it {after}")
    return TensorType(before.dtype, tuple(settled(a, b) for a, b in zip(before.shape, after.shape, strict=True)))


def settle_carried(
    context: InferContext,
    body: Subgraph,
    given: tuple[Sequence[TensorType], Sequence[TensorType]],
    carried: Sequence[TensorType],
    place: int,
) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
    """(types of the values that a loop carries, whichever turn it is; types of all of the body's outputs).

    `given` are types of the body's inputs before the carried ones and of what it captures; the carried values are
    outputs from `place` on. A dimension that a turn changes is unknown; if others follow from it, all that are carried
    are, so that three looks at the body are enough.
    """
    before, captured = given
    current = list(carried)
    for look in range(3):
        outputs = context.body(body, (*before, *current, *captured))
        after = outputs[place : place + len(current)]
        changed = False
        for index, (now, then) in enumerate(zip(current, after, strict=True)):
            if now.dtype == then.dtype and now.rank == then.rank and all(map(_stays, now.shape, then.shape)):
                continue
            current[index] = joined(context, now, then, f"the carried value {body.inputs[len(before) + index]!r}")
            changed = True
        if not changed:
            return tuple(current), outputs
        if look == 1:
            current = [_open(context, type_) for type_ in current]
    raise context.shape_error("the shapes of what it carries do not settle")


def _stays(before: Dim, after: Dim) -> bool:
    """Whether a dimension that is called `before` may be called so after what makes it `after`."""
    return before == after or is_unknown(before)


def _open(context: InferContext, type_: TensorType) -> TensorType:
    return TensorType(type_.dtype, tuple(context.unknown() for _ in type_.shape))


def is_one(type_: TensorType) -> bool:
    """Whether a value of the type may be one element: a condition, a count."""
    return type_.rank == 0 or all(agree(dim, 1) for dim in type_.shape)


def passed_on(body: Subgraph, output: int) -> str:
    """The value that output `output` is, seen through Identity: an input, what is captured, a constant or a node's."""
    made_by = {name: node for node in body.nodes for name in node.outputs if name}
    name = body.outputs[output]
    while name in made_by and (made_by[name].domain, made_by[name].op_type) == ("", "Identity"):
        name = made_by[name].inputs[0]
    return name


# --- Along which axes, and from which end, a loop takes its inputs apart and puts its outputs together ----------------


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
