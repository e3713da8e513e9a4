"""Each bin's gradient, added at its largest element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.indexing.rows import summed_rows
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.whole_bins import largest_of_bins

HOST_INPUTS = (2,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, rois = required(inputs)
    _, place = largest_of_bins(xp, data, rois, attributes)
    summed = summed_rows(xp, gradient.reshape(-1, 1), place.reshape(-1), data.size)
    return (summed.reshape(data.shape).astype(data.dtype, copy=False),)
