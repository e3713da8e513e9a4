"""Reductions over axes, running sums and products, the largest and where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.indexing import place
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.products import products_before, running_gradient
from weft_kernels.reductions import extreme, log_of_sum, reduction, reduction_axes, summed, widened

reduce_sum = kernel("ReduceSum", host_inputs=(1,), in_float32=("float16", "bfloat16"))(reduction(summed))
"""The sum over axes."""


@kernel("ReduceSumGrad", domain=WEFT_DOMAIN, host_inputs=(2,))
def reduce_sum_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient of a sum: a read-only view of it in the data's shape."""
    gradient, data = required(inputs, 2)
    axes = reduction_axes(optional(inputs, 2), attributes, data.ndim)
    return (context.xp.broadcast_to(widened(gradient, axes, data.ndim), data.shape),)


def _mean(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    return xp.mean(data, axis=axes, keepdims=keepdims, dtype=data.dtype, out=out) if axes else data


reduce_mean = kernel("ReduceMean", host_inputs=(1,), in_float32=("float16", "bfloat16"))(reduction(_mean))
"""The mean over axes."""


@kernel("ReduceMeanGrad", domain=WEFT_DOMAIN, host_inputs=(2,), in_float32=("float16", "bfloat16"))
def reduce_mean_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient of a mean: a read-only view, in the data's shape, of what each element has of it."""
    gradient, data = required(inputs, 2)
    axes = reduction_axes(optional(inputs, 2), attributes, data.ndim)
    # Where there is nothing to take the mean of, there is no element that has a share either.
    share = widened(gradient, axes, data.ndim) / max(math.prod(data.shape[axis] for axis in axes), 1)
    return (context.xp.broadcast_to(share, data.shape),)


reduce_max = kernel("ReduceMax", host_inputs=(1,))(reduction(partial(extreme, largest=True)))
"""The largest element over the axes."""


reduce_min = kernel("ReduceMin", host_inputs=(1,))(reduction(partial(extreme, largest=False)))
"""The smallest element over the axes."""


def _prod(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    return xp.prod(data, axis=axes, keepdims=keepdims, dtype=data.dtype, out=out) if axes else data


reduce_prod = kernel("ReduceProd", host_inputs=(1,), in_float32=("float16", "bfloat16"))(reduction(_prod))
"""The product over the axes."""


@kernel("ReduceProdGrad", domain=WEFT_DOMAIN, host_inputs=(2,), in_float32=("float16", "bfloat16"))
def reduce_prod_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient times the product of the other elements: a single zero leaves one to itself alone."""
    xp = context.xp
    gradient, data = required(inputs, 2)
    axes = reduction_axes(optional(inputs, 2), attributes, data.ndim)
    if not axes:
        return (gradient,)
    zero = data == 0
    apart = xp.where(zero, data.dtype.type(1), data)
    product = xp.prod(apart, axis=axes, keepdims=True, dtype=data.dtype)
    zeros = xp.sum(zero, axis=axes, keepdims=True)
    others = xp.where(zeros - zero == 0, product / apart, data.dtype.type(0))
    return (widened(gradient, axes, data.ndim) * others,)


def _l1(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    return summed(xp, xp.abs(data), axes, keepdims=keepdims, out=out)


reduce_l1 = kernel("ReduceL1", host_inputs=(1,), in_float32=("float16", "bfloat16"))(reduction(_l1))
"""The sum of absolute values over the axes."""


def _l2(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    wide = data.astype(statistics_dtype(xp, data), copy=False)
    total = summed(xp, xp.square(wide), axes, keepdims=keepdims)
    return xp.sqrt(total).astype(data.dtype, copy=False)  # type: ignore[no-any-return]  # xp is Any


reduce_l2 = kernel("ReduceL2", host_inputs=(1,), in_float32=("float16", "bfloat16"))(reduction(_l2))
"""The square root of the sum of squares over the axes."""


def _log_sum(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    total = summed(xp, data, axes, keepdims=keepdims, out=out)
    return xp.log(total, out=out)  # type: ignore[no-any-return]  # xp is Any


reduce_log_sum = kernel("ReduceLogSum", host_inputs=(1,), in_float32=("float16", "bfloat16"))(reduction(_log_sum))
"""The logarithm of the sum over the axes."""


reduce_log_sum_exp = kernel("ReduceLogSumExp", host_inputs=(1,), in_float32=("float16", "bfloat16"))(
    reduction(log_of_sum)
)
"""The logarithm of the sum of exponentials over the axes."""


def _sum_square(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, out: Array | None = None) -> Array:
    return summed(xp, xp.square(data), axes, keepdims=keepdims)


reduce_sum_square = kernel("ReduceSumSquare", host_inputs=(1,), in_float32=("float16", "bfloat16"))(
    reduction(_sum_square)
)
"""The sum of squares over the axes."""


@kernel("SumTo", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def sum_to(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Sum over the dimensions along which a shape was broadcast."""
    data, like = required(inputs)
    lead = data.ndim - like.ndim
    stretched = (axis + lead for axis in range(like.ndim) if like.shape[axis] != data.shape[axis + lead])
    axes = (*range(lead), *stretched)
    if not axes:
        return (data,)
    made = context.out(0, data.dtype)
    if made is None or not made.flags.c_contiguous:
        return (context.xp.sum(data, axis=axes, dtype=data.dtype).reshape(like.shape),)
    out = made
    if len(axes) > lead:
        out = made.reshape(tuple(size for axis, size in enumerate(data.shape) if axis not in axes))
    context.xp.sum(data, axis=axes, dtype=data.dtype, out=out)
    return (made,)


@kernel("CumSum", host_inputs=(1,), in_float32=("float16", "bfloat16"))
def cum_sum(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Running sums along an axis, from either end."""
    xp = context.xp
    data, given = required(inputs)
    axis = normalised(int(given.reshape(-1)[0]), data.ndim)
    if as_int(attributes["reverse"]):
        return (xp.flip(_running(xp, xp.flip(data, axis), axis, attributes), axis),)
    return (_running(xp, data, axis, attributes),)


def _running(xp: Any, data: Array, axis: int, attributes: Mapping[str, AttributeValue]) -> Array:
    if not as_int(attributes["exclusive"]) or data.shape[axis] == 0:
        return xp.cumsum(data, axis=axis, dtype=data.dtype)  # type: ignore[no-any-return]  # xp is Any
    result = xp.zeros(data.shape, dtype=data.dtype)
    before = data.swapaxes(0, axis)[:-1]
    result.swapaxes(0, axis)[1:] = xp.cumsum(before, axis=0, dtype=data.dtype)
    return result  # type: ignore[no-any-return]  # xp is Any


@kernel("CumProd", host_inputs=(1,), in_float32=("float16", "bfloat16"))
def cum_prod(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Running products along an axis, from either end."""
    xp = context.xp
    data, given = required(inputs)
    axis, backwards = normalised(int(given.reshape(-1)[0]), data.ndim), as_int(attributes["reverse"])
    along = data.swapaxes(0, axis)
    along = along[::-1] if backwards else along
    if as_int(attributes["exclusive"]):
        result = products_before(xp, along)
    else:
        result = xp.cumprod(along, axis=0, dtype=data.dtype)
    return ((result[::-1] if backwards else result).swapaxes(0, axis),)


@kernel("CumProdGrad", domain=WEFT_DOMAIN, host_inputs=(2,), in_float32=("float16", "bfloat16"))
def cum_prod_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient of running products."""
    xp = context.xp
    gradient, data, given = required(inputs)
    axis, backwards = normalised(int(given.reshape(-1)[0]), data.ndim), as_int(attributes["reverse"])
    gradient, data = gradient.swapaxes(0, axis), data.swapaxes(0, axis)
    if backwards:
        gradient, data = gradient[::-1], data[::-1]
    if as_int(attributes["exclusive"]):
        # The product before a row is the product up to the row before it.
        shifted = xp.zeros(gradient.shape, dtype=gradient.dtype)
        shifted[:-1] = gradient[1:]
        gradient = shifted
    result = running_gradient(xp, gradient, data)
    return ((result[::-1] if backwards else result).swapaxes(0, axis),)


@kernel("ArgMax")
def arg_max(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Index of the largest element along an axis."""
    (data,) = required(inputs)
    return (place(context.xp, context.xp.argmax, data, attributes),)


@kernel("ArgMin")
def arg_min(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Index of the smallest element along an axis."""
    (data,) = required(inputs)
    return (place(context.xp, context.xp.argmin, data, attributes),)


@kernel("TopK", host_inputs=(1,), waits=True)
def top_k(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The largest or smallest elements, sorted; of equals the first come first."""
    xp = context.xp
    data, given = required(inputs)
    axis, k = normalised(as_int(attributes["axis"]), data.ndim), int(given.reshape(-1)[0])
    size = data.shape[axis]
    if not 0 <= k <= size:
        raise ValueError(f"K is {k}, and dimension {axis} has {size} elements")
    if as_int(attributes["largest"]):
        # Sorted from the back, so that what is read from there again has the first of equals first.
        behind = xp.argsort(xp.flip(data, axis), axis=axis, kind="stable")
        order = size - 1 - xp.flip(behind, axis)
    else:
        order = xp.argsort(data, axis=axis, kind="stable")
    first = order[(slice(None),) * axis + (slice(0, k),)].astype(xp.int64, copy=False)
    return xp.take_along_axis(data, first, axis), first
