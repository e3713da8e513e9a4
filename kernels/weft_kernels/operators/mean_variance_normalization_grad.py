"""Gradient of the data; mean and deviation are computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.standardized_rows import centred_along
from weft_kernels.operators.mean_variance_normalization import BESIDE


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data = required(inputs)
    axes = as_ints(attributes["axes"])
    centred, deviation = centred_along(xp, data, axes)
    gradient = gradient.astype(centred.dtype, copy=False)
    below, count = deviation + BESIDE, max(data.size // max(deviation.size, 1), 1)
    result = gradient - xp.sum(gradient, axis=axes, keepdims=True, dtype=gradient.dtype) / count
    # Through the deviation, which has no slope where it is 0: what is centred is 0 there too.
    together = xp.sum(gradient * centred, axis=axes, keepdims=True, dtype=gradient.dtype) / count
    result -= centred * (together / xp.where(deviation == 0, 1, deviation * below))
    result /= below
    return (xp.where(deviation == 0, result.dtype.type(0), result).astype(data.dtype, copy=False),)
