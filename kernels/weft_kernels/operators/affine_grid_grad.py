"""Each matrix's gradient: the places' gradients times the places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.affine import homogeneous_places

HOST_INPUTS = (2,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, theta, size = required(inputs)
    shape = [int(number) for number in size.tolist()[2:]]
    dtype, aligned = statistics_dtype(xp, theta), bool(as_int(attributes["align_corners"]))
    places = homogeneous_places(xp, shape, dtype, align_corners=aligned)
    rows = gradient.astype(dtype, copy=False).reshape(theta.shape[0], len(places), len(shape))
    return (xp.matmul(rows.swapaxes(1, 2), places).astype(theta.dtype, copy=False),)
