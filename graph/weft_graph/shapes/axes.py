"""Axes: counted from either end, given as an input or as an attribute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft_graph.attributes import as_int, as_ints
from weft_graph.dimensions.dims import product
from weft_graph.schema import InferContext
from weft_graph.types import TensorType


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
