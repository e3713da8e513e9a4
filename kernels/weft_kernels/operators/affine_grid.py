"""Every place of the image times each matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.affine import homogeneous_places

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    theta, size = required(inputs)
    batch, _, *shape = (int(number) for number in size.tolist())
    if batch != theta.shape[0] or min(shape) < 0:
        raise ValueError(f"size {[batch, *shape]} does not fit {theta.shape[0]} matrices")
    dtype, aligned = statistics_dtype(xp, theta), bool(as_int(attributes["align_corners"]))
    places = homogeneous_places(xp, shape, dtype, align_corners=aligned)
    grid = xp.matmul(places, theta.astype(dtype, copy=False).swapaxes(1, 2))
    return (grid.reshape(batch, *shape, len(shape)).astype(theta.dtype, copy=False),)
