"""A node's axes: its second input or its attribute `axes`."""

from __future__ import annotations

from collections.abc import Mapping

from weft_graph.attributes import as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_graph.shapes.broadcasting import all_normalised
from weft_graph.shapes.reductions import reduced_axes
from weft_kernels.kernel import Array


def axes_of(given: Array | None, attributes: Mapping[str, AttributeValue], rank: int) -> tuple[int, ...] | None:
    """The axes counted from the front, or None where the node has none. Raises ValueError outside the rank."""
    if "axes" in attributes:
        return all_normalised(as_ints(attributes["axes"]), rank)
    return None if given is None else all_normalised(given.reshape(-1).tolist(), rank)


def reduction_axes(given: Array | None, attributes: Mapping[str, AttributeValue], rank: int) -> tuple[int, ...]:
    """The axes that a reduction reduces, counted from the front; none where it is to do nothing."""
    return reduced_axes(axes_of(given, attributes, rank), rank, as_int(attributes["noop_with_empty_axes"]))


def widened(gradient: Array, axes: tuple[int, ...], rank: int) -> Array:
    """The gradient of a reduction with a dimension of 1 at each axis that was reduced, kept or not."""
    sizes = iter(gradient.shape)
    if gradient.ndim == rank:
        return gradient
    return gradient.reshape(tuple(1 if axis in axes else next(sizes) for axis in range(rank)))
