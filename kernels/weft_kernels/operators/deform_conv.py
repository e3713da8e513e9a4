"""The moved places of all windows as columns, and one matrix product for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.deformed_windows import deformed_blocks
from weft_kernels.sampling.taps import sampled


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, weights, offset = required(inputs, 3)
    bias, mask, group = optional(inputs, 3), optional(inputs, 4), as_int(attributes["group"])
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    features = weights.shape[0]
    kernels = weights.astype(statistics_dtype(xp, data), copy=False).reshape(group, features // group, -1)
    result = xp.empty((data.shape[0], features, *windows.count), dtype=data.dtype)
    for part, block in deformed_blocks(data, weights, offset, mask, attributes):
        columns = block.columns(block.weighed(sampled(xp, block.rows(xp), block.taps(xp))), group)
        made = xp.matmul(kernels, columns).reshape(features, part.stop - part.start, *windows.count)
        result[part] = made.swapaxes(0, 1)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(windows.size))
    return (result,)
