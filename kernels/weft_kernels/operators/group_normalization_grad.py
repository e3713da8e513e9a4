"""Gradients of the data, the scale and the bias; the statistics are computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.batch_statistics import beside, other_axes
from weft_kernels.normalization.standardized_rows import group_rows, standardized, standardized_gradient


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, scale = required(inputs)
    groups = as_int(attributes["num_groups"]) or data.shape[1]
    normal, _, inverse = standardized(xp, group_rows(data, groups), as_float(attributes["epsilon"]))
    gradient = gradient.astype(normal.dtype, copy=False)
    by_normal = gradient * beside(data, scale).astype(normal.dtype, copy=False)
    result = standardized_gradient(xp, group_rows(by_normal, groups), normal, inverse)
    axes = other_axes(data)
    by_scale = xp.sum(gradient * normal.reshape(data.shape), axis=axes, dtype=normal.dtype)
    by_bias = xp.sum(gradient, axis=axes, dtype=normal.dtype)
    return (
        result.reshape(data.shape).astype(data.dtype, copy=False),
        by_scale.astype(scale.dtype, copy=False),
        by_bias.astype(scale.dtype, copy=False),
    )
