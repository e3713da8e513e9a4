"""Axes, broadcasting, and results of casts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft_graph.attributes import as_int, as_ints
from weft_graph.dimensions import Dim, agree, is_unknown, product, unknown_of
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.schema import Attribute, GradientContext, Infer, InferContext
from weft_graph.types import DType, Shape, TensorType

# --- Axes: counted from either end, given as an input or as an attribute ----------------------------------------------


def normalised(axis: int, rank: int) -> int:
    """The axis counted from the front. Raises ValueError where a tensor of that rank has none such."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside [{-rank}, {rank})")
    return axis + rank if axis < 0 else axis


def all_normalised(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """The axes counted from the front, in order. Raises ValueError for one outside the rank or named twice."""
    given = tuple(axes)
    counted = tuple(sorted(normalised(axis, rank) for axis in given))
    if len(set(counted)) < len(counted):
        raise ValueError(f"axes {given} name one of {rank} dimensions twice")
    return counted


def infer_axis(context: InferContext, rank: int) -> int:
    """The attribute `axis`, counted from the front. Raises ShapeError, which names the node."""
    try:
        return normalised(as_int(context.attribute("axis")), rank)
    except ValueError as error:
        raise context.shape_error(f"{error} of {context.input(0)}") from None


@dataclass(frozen=True, slots=True)
class OpenAxes:
    """Axes that only the values of a step decide: how many there are, or None where that is not known either."""

    count: int | None


def infer_axes(context: InferContext, rank: int) -> tuple[int, ...] | OpenAxes | None:
    """Input 1 or the attribute `axes`, counted from the front; None where there is neither.

    Raises ShapeError, which names the node, for axes outside the rank or named twice.
    """
    given = context.attribute("axes")
    if given is not None:
        axes = as_ints(given)
    else:
        type_ = context.optional_input(1)
        if type_ is None:
            return None
        known = context.constant(1)
        if known is None:
            return _open(context, rank, type_)
        axes = tuple(int(axis) for axis in known.reshape(-1))
    try:
        return all_normalised(axes, rank)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {context.input(0)}") from None


def _open(context: InferContext, rank: int, type_: TensorType) -> OpenAxes:
    count = product(type_.shape)
    if isinstance(count, int) and count > rank:
        raise context.shape_error(f"{count} axes of {rank} dimensions; the input is {context.input(0)}")
    return OpenAxes(count if isinstance(count, int) else None)


# ----------------------------------------------------------------------------------------------------------------------
# What Cast, CastLike and BitCast have in common: the element type they ask for, and how numbers are rounded to it.


ROUNDING_ATTRIBUTES = {
    # Both are for float8 alone.
    "saturate": Attribute(int, default=1),
    "round_mode": Attribute(str, default="up"),
}
_ROUND_MODES = ("up", "down", "nearest")


def dtype_attribute(context: InferContext, name: str) -> DType:
    """The element type whose ONNX number the attribute is. Raises DTypeError for a number that is none of them."""
    number = as_int(context.attribute(name))
    dtype = DTYPE_OF_NUMBER.get(number)
    if dtype is None:
        known = ", ".join(f"{key} {value}" for key, value in DTYPE_OF_NUMBER.items())
        raise context.dtype_error(f"{name} is element type {number}, which is none of {known}")
    return dtype


def check_round_mode(context: InferContext) -> None:
    """Raises DTypeError unless the attribute `round_mode` is one of ONNX's."""
    mode = context.attribute("round_mode")
    if mode not in _ROUND_MODES:
        raise context.dtype_error(f"round_mode {mode!r} is none of {', '.join(_ROUND_MODES)}")


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that all broadcast to, or None where two dimensions differ and neither is 1.

    A name broadcasts with itself and with 1 only: nothing says that `batch` will be 32. A dimension that only a step's
    values decide gives way to what is known: it is equal, or 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    dims: list[Dim] = []
    for column in zip(*padded, strict=True):
        distinct = {dim for dim in column if dim != 1}
        known = {dim for dim in distinct if not is_unknown(dim)}
        if len(known) > 1:
            return None
        dims.append(known.pop() if known else _either(distinct))
    return tuple(dims)


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Whether `shape` may broadcast to `target` in a step, which does not grow by it."""
    lead = len(target) - len(shape)
    return lead >= 0 and all(dim == 1 or agree(dim, wide) for dim, wide in zip(shape, target[lead:], strict=True))


def _either(distinct: set[Dim]) -> Dim:
    """Of dimensions that only values decide, each may be 1: what they broadcast to is none of them for certain."""
    if len(distinct) < 2:
        return distinct.pop() if distinct else 1
    return unknown_of("broadcast", *sorted(map(str, distinct)))


def infer_broadcast(context: InferContext, *indices: int) -> Shape:
    """The shape that the inputs broadcast to. Raises ShapeError with every input's type."""
    types = [context.input(index) for index in indices]
    shape = broadcast(*(type_.shape for type_ in types))
    if shape is None:
        raise context.shape_error(f"shapes do not broadcast: {' and '.join(map(str, types))}")
    return shape


def check_same_dtype(context: InferContext, *indices: int) -> None:
    """Raises DTypeError, with every input's type, unless all inputs have one element type."""
    types = [context.input(index) for index in indices]
    if len({type_.dtype for type_ in types}) > 1:
        raise context.dtype_error(f"inputs must have one element type, got {' and '.join(map(str, types))}")


def infer_like(index: int) -> Infer:
    """Output like that input: a gradient like what it is of."""
    return lambda context: (context.input(index),)


def infer_unary(context: InferContext) -> tuple[TensorType, ...]:
    """Output like input 0."""
    return (context.input(0),)


def infer_binary(context: InferContext) -> tuple[TensorType, ...]:
    """Output of inputs 0 and 1, broadcast, of their one element type."""
    check_same_dtype(context, 0, 1)
    return (TensorType(context.input(0).dtype, infer_broadcast(context, 0, 1)),)


def infer_variadic(context: InferContext) -> tuple[TensorType, ...]:
    """Output of all inputs, broadcast, of their one element type."""
    indices = range(len(context.node.inputs))
    check_same_dtype(context, *indices)
    return (TensorType(context.input(0).dtype, infer_broadcast(context, *indices)),)


def infer_comparison(context: InferContext) -> tuple[TensorType, ...]:
    """A boolean for each element of inputs 0 and 1, broadcast, which have one element type."""
    check_same_dtype(context, 0, 1)
    return (TensorType(DType.BOOL, infer_broadcast(context, 0, 1)),)


def sum_to(context: GradientContext, gradient: str, like: str) -> str:
    """The name of `gradient` summed over the dimensions along which `like` was broadcast."""
    if context.type_of(gradient).shape == context.type_of(like).shape:
        return gradient
    return context.emit("SumTo", (gradient, like), domain=WEFT_DOMAIN)[0]
