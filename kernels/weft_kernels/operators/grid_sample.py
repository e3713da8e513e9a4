"""For each place of the grid the weighted sum of the elements around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.grids import grid_taps
from weft_kernels.sampling.taps import rows_of, sampled, unrowed


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, grid = required(inputs)
    rows = rows_of(xp, data, statistics_dtype(xp, data))
    result = sampled(xp, rows, grid_taps(xp, grid, data.shape[2:], attributes))
    shape = (*data.shape[:2], *grid.shape[1:-1])
    return (unrowed(result, shape).astype(data.dtype, copy=False),)
