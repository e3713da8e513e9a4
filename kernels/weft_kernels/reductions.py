"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from weft_graph.attributes import as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_graph.shapes.broadcasting import all_normalised
from weft_graph.shapes.reductions import reduced_axes
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import is_float, statistics_dtype
from weft_kernels.kernel import Array, Kernel, KernelContext

# --- A node's axes: its second input or its attribute `axes` ----------------------------------------------------------


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


class Reduced(Protocol):
    """What a reduction makes of the data over the axes, counted from the front; none of them reduces nothing. `out`, of
    the result's shape and the data's type, is where it may write it."""

    def __call__(
        self, xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None
    ) -> Array: ...


def reduction(reduced: Reduced) -> Kernel:
    """The body of an operator (data, axes on the host) with the attributes of ONNX's reductions."""

    def run(
        context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[Array, ...]:
        (data,) = required(inputs, 1)
        axes = reduction_axes(optional(inputs, 1), attributes, data.ndim)
        keepdims, out = bool(as_int(attributes["keepdims"])), context.out(0, data.dtype)
        return (reduced(context.xp, data, axes, keepdims=keepdims, out=out),)

    return run


def summed(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    """The sum over the axes; the data itself where there are none."""
    if not axes:
        return data
    return xp.sum(data, axis=axes, keepdims=keepdims, dtype=data.dtype, out=out)  # type: ignore[no-any-return]  # xp is Any


def extreme(
    xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, largest: bool, out: Array | None = None
) -> Array:
    """The largest or smallest element over the axes; of none it is the type's lowest or highest value."""
    if not axes:
        return data
    if math.prod(data.shape[axis] for axis in axes) == 0:
        dims = (1 if axis in axes else size for axis, size in enumerate(data.shape) if keepdims or axis not in axes)
        return xp.full(tuple(dims), _bound(xp, data, lowest=largest), dtype=data.dtype)  # type: ignore[no-any-return]  # xp is Any
    result: Array = (xp.max if largest else xp.min)(data, axis=axes, keepdims=keepdims, out=out)
    return result


def log_of_sum(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    """ln(sum(exp(data))), shifted by the largest element first, so that nothing overflows; -infinity of none."""
    wide = data.astype(statistics_dtype(xp, data), copy=False)
    largest = extreme(xp, wide, axes, keepdims=True, largest=True)
    shift = xp.where(xp.isfinite(largest), largest, wide.dtype.type(0))
    total = xp.log(summed(xp, xp.exp(wide - shift), axes, keepdims=True)) + shift
    result = total if keepdims else xp.squeeze(total, axis=axes)
    return result.astype(data.dtype, copy=False)  # type: ignore[no-any-return]  # xp is Any


def _bound(xp: Any, data: Array, *, lowest: bool) -> float:
    if is_float(data.dtype):
        return -math.inf if lowest else math.inf
    if data.dtype.kind == "b":
        return 0 if lowest else 1
    limits = xp.iinfo(data.dtype)
    return int(limits.min if lowest else limits.max)
