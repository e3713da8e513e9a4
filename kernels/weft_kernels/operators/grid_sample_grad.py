"""Each gradient, added to the elements around its place; and what a step of the place would have made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.grids import grid_taps
from weft_kernels.sampling.taps import rows_of, slopes, spread, unrowed


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, grid = required(inputs)
    shape, dtype = data.shape[2:], statistics_dtype(xp, data)
    rows, points = rows_of(xp, data, dtype), rows_of(xp, gradient, dtype)[:-1]
    added = spread(xp, points, grid_taps(xp, grid, shape, attributes), len(rows))
    result = unrowed(added, data.shape).astype(data.dtype, copy=False)
    if not context.asks(1):
        return (result,)
    moved = slopes(xp, rows, points, grid_taps(xp, grid, shape, attributes), len(shape))
    return result, moved[:, ::-1].reshape(grid.shape).astype(grid.dtype, copy=False)
