"""Normalised by channel, in training by the batch's statistics, which also move the running ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.batch_statistics import batch_statistics, beside, samples_of


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, scale, bias, mean, variance = required(inputs)
    dtype = statistics_dtype(xp, data)
    epsilon = as_float(attributes["epsilon"])
    if not as_int(attributes["training_mode"]):
        factor = scale.astype(dtype) / xp.sqrt(variance.astype(dtype) + epsilon)
        offset = bias - mean * factor
        result = xp.multiply(data, beside(data, factor), out=context.out(0, dtype))
        result += beside(data, offset)
        return result.astype(data.dtype, copy=False), mean, variance
    centred, batch_mean, batch_variance = batch_statistics(xp, data, context.out(0, dtype))
    centred *= beside(data, scale.astype(dtype) / xp.sqrt(batch_variance + epsilon))
    centred += beside(data, bias)
    # A batch without elements has no statistics: the running ones stay.
    kept = as_float(attributes["momentum"]) if samples_of(data) else 1.0
    return (
        centred.astype(data.dtype, copy=False),
        (mean * kept + batch_mean * (1 - kept)).astype(mean.dtype, copy=False),
        (variance * kept + batch_variance * (1 - kept)).astype(variance.dtype, copy=False),
    )
