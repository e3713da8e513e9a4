"""Gradients of the input, the scale, the bias and, outside training, the statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.batch_statistics import (
    batch_statistics,
    beside,
    other_axes,
    samples_of,
)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, scale, mean, variance = required(inputs)
    epsilon = as_float(attributes["epsilon"])
    if as_int(attributes["training_mode"]):
        return _training(context, gradient, data, scale, epsilon)
    axes, dtype = other_axes(data), statistics_dtype(xp, data)
    inverse = 1 / xp.sqrt(variance.astype(dtype) + epsilon)
    by_bias = xp.sum(gradient, axis=axes, dtype=dtype)
    centred = data - beside(data, mean)
    by_centred = xp.sum(gradient * centred, axis=axes, dtype=dtype)
    return (
        (gradient * beside(data, scale * inverse)).astype(data.dtype, copy=False),
        (by_centred * inverse).astype(scale.dtype, copy=False),
        by_bias.astype(scale.dtype, copy=False),
        (-by_bias * scale * inverse).astype(mean.dtype, copy=False),
        (by_centred * scale * inverse**3 * -0.5).astype(variance.dtype, copy=False),
    )


def _training(context: KernelContext, gradient: Array, data: Array, scale: Array, epsilon: float) -> tuple[Array, ...]:
    """Ioffe and Szegedy, "Batch normalization", 2015, section 3, with both sums taken once."""
    xp = context.xp
    axes, dtype = other_axes(data), statistics_dtype(xp, data)
    count = max(samples_of(data), 1)
    # From here on the memory of `data` may be the result's.
    normal, _, variance = batch_statistics(xp, data, context.out(0, dtype))
    inverse = 1 / xp.sqrt(variance + epsilon)
    normal *= beside(data, inverse)
    by_bias = xp.sum(gradient, axis=axes, dtype=dtype)
    by_scale = xp.sum(gradient * normal, axis=axes, dtype=dtype)
    normal *= beside(data, by_scale / -count)
    normal += gradient
    normal -= beside(data, by_bias / count)
    normal *= beside(data, scale * inverse)
    return (
        normal.astype(data.dtype, copy=False),
        by_scale.astype(scale.dtype, copy=False),
        by_bias.astype(scale.dtype, copy=False),
    )
