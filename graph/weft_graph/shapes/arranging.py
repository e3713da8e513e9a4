"""Shapes of what is reshaped, sliced, padded, and listed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from weft_graph.attributes import as_ints
from weft_graph.dimensions import (
    Amount,
    Dim,
    added,
    agree,
    as_dim,
    is_natural,
    is_unknown,
    minus,
    over,
    plus,
    product,
    quotient,
    smaller,
    times,
    unknown_of,
)
from weft_graph.ir import Node
from weft_graph.layout.strides import NO_VIEW, expanded, numbers, permuted
from weft_graph.schema import InferContext, Strides
from weft_graph.shapes.broadcasting import normalised
from weft_graph.shapes.windows import PADDED_ELEMENTS, PADDED_GROWTH, Get, Windows, windows_of
from weft_graph.types import Shape

# --- Lists of whole numbers that a node has as an attribute, in older forms, or as an input ---------------------------


def infer_amounts(context: InferContext, index: int, name: str) -> tuple[Amount, ...] | None:
    """The attribute `name`, or what is known of the numbers of input `index`; None where there is neither.

    Raises ShapeError, which names the node, where there are both, or where it is not known how many numbers there are.
    """
    given = context.attribute(name) if name in context.node.attributes else None
    type_ = context.optional_input(index)
    if given is not None and type_ is not None:
        raise context.shape_error(f"{name} is an input and an attribute; it must be one of them")
    if given is not None:
        return as_ints(given)
    if type_ is None:
        return None
    numbers = context.amounts(index)
    if type_.rank > 1 or numbers is None:
        raise context.shape_error(f"{name} must be a list of numbers whose length is known before a step, got {type_}")
    return numbers


def infer_required_amounts(context: InferContext, index: int, name: str) -> tuple[Amount, ...]:
    """The same, where a node must have one or the other."""
    numbers = infer_amounts(context, index, name)
    if numbers is None:
        raise context.shape_error(f"{name} is missing")
    return numbers


def infer_shape(context: InferContext, index: int, name: str) -> Shape:
    """Input `index` as a shape. Raises ShapeError where its rank is not known before a step or a number is below 0."""
    dims = context.dims(index)
    if dims is None:
        raise context.shape_error(
            f"{name} must be a list of as many numbers as dimensions, known before a step, got {context.input(index)}"
        )
    if any(isinstance(dim, int) and dim < 0 for dim in dims):
        raise context.shape_error(f"{name} {list(dims)} has a dimension below 0")
    return dims


def whole(amounts: tuple[Amount, ...] | None) -> tuple[int, ...] | None:
    """The numbers where all are known, else None."""
    if amounts is None:
        return None
    numbers = tuple(amount for amount in amounts if isinstance(amount, int))
    return numbers if len(numbers) == len(amounts) else None


# --- How many numbers Range gives -------------------------------------------------------------------------------------


def range_length(start: float, limit: float, delta: float) -> int:
    """The count of numbers from `start` to before `limit` by `delta`. Raises ValueError where there is none such."""
    if delta == 0 or not all(math.isfinite(number) for number in (start, limit, delta)):
        raise ValueError(f"there is no range from {start} to {limit} by {delta}")
    if all(isinstance(number, int) for number in (start, limit, delta)):
        return max(int(-((limit - start) // -delta)), 0)
    return max(math.ceil((limit - start) / delta), 0)


# --- The shape that Reshape gives: 0 copies a dimension, -1 is what is left -------------------------------------------


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


# --- The parts of a tensor that Slice and Split take ------------------------------------------------------------------


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


# --- How many elements Pad adds before and after each dimension -------------------------------------------------------


MODES = ("constant", "reflect", "edge", "wrap")

Sides = tuple[tuple[int, int], ...]
"""For each dimension: elements added before it and after it; a negative number takes elements away."""


OpenSides = tuple[tuple[Amount, Amount], ...]
"""The same as far as it is known before a step."""


def sides_of(rank: int, pads: Sequence[int], axes: Sequence[int] | None = None) -> Sides:
    """The pads of each dimension, of all of them or of `axes`. Raises ValueError where the lists do not fit."""
    sides = [(0, 0)] * rank
    along = _padding_along(rank, len(pads), range(rank) if axes is None else axes)
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
    along = _padding_along(rank, len(pads), known)
    for place, axis in enumerate(along):
        sides[axis] = pads[place], pads[place + len(along)]
    return tuple(sides)


def _padding_along(rank: int, count: int, axes: Sequence[int]) -> list[int]:
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
    return tuple(_padding_length(dim, begin, end, mode) for dim, (begin, end) in zip(shape, sides, strict=True))


def open_padded(shape: Shape, sides: OpenSides, mode: str, unknown: Callable[[], Dim]) -> Shape:
    """The same before a step; `unknown` names a dimension of which nothing can be said."""
    dims: list[Dim] = []
    for dim, (begin, end) in zip(shape, sides, strict=True):
        if isinstance(dim, int) and isinstance(begin, int) and isinstance(end, int):
            dims.append(_padding_length(dim, begin, end, mode))
        else:
            length = plus(dim, plus(begin, end))
            dims.append(unknown() if length is None else as_dim(length))
    return tuple(dims)


def _padding_length(dim: int, begin: int, end: int, mode: str) -> int:
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


# --- The rules of operators whose outputs are views of their first input: where the elements lie in its memory --------


def transposed(node: Node, shape: Shape, strides: Strides | None, _target: Shape) -> Strides | None:
    """Transpose."""
    if strides is None:
        return None
    axes = node.attributes.get("perm")
    return permuted(strides, range(len(shape))[::-1] if axes is None else as_ints(axes))


def repeated(_node: Node, shape: Shape, strides: Strides | None, target: Shape) -> Strides | None:
    """Expand: elements that are repeated lie on one place."""
    sizes, wide = numbers(shape), numbers(target)
    return None if strides is None or sizes is None or wide is None else expanded(sizes, strides, wide)


def part(_node: Node, _shape: Shape, _strides: Strides | None, _target: Shape) -> Strides | None:
    """Slice and Split: some of the elements, every so many of them."""
    return None


def squeezed(_node: Node, shape: Shape, strides: Strides | None, target: Shape) -> Strides | None:
    """Squeeze and Unsqueeze: dimensions of 1 come and go."""
    sizes, other = numbers(shape), numbers(target)
    if strides is None or sizes is None or other is None:
        return None
    kept = iter(step for size, step in zip(sizes, strides, strict=True) if size != 1)
    return tuple(1 if size == 1 else next(kept) for size in other)


def same(_node: Node, shape: Shape, strides: Strides | None, target: Shape) -> Strides | None:
    """Where nothing is to be done, the input itself is given; otherwise it is no view."""
    return strides if shape == target else NO_VIEW


# --- The blocks that Col2Im puts together: the windows of a convolution over the image --------------------------------


def blocks_of(image: tuple[int, ...], block: tuple[int, ...], get: Get) -> Windows:
    """The windows over an image, one for each block. Raises ValueError where they do not fit or make far too much."""
    if not image or len(image) != len(block) or min(image + block) < 1:
        raise ValueError(f"image_shape {image} and block_shape {block} must be as long lists of numbers above 0")
    windows = windows_of(image, get, block)
    padded = math.prod(sum(dims) for dims in zip(windows.size, windows.begin, windows.reach, strict=True))
    if padded > max(PADDED_ELEMENTS, PADDED_GROWTH * math.prod(image)):
        raise ValueError(f"pads {windows.begin + windows.end} make {padded} elements a channel of {math.prod(image)}")
    return windows
