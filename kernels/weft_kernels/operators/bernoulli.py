"""Whether a draw of the step is below the probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.host import any_of
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.node_draws import node_key, samples_before, seed_of, uniform


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    wide = data.astype(xp.float64)
    if any_of(xp, ~((wide >= 0) & (wide <= 1))):
        raise ValueError("a probability is outside [0, 1]")
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    start = samples_before(context, data.shape, data.size)
    unit = uniform(node_key(context, seed_of(attributes)), start, data.size).reshape(data.shape)
    return ((xp.asarray(unit) < wide).astype(dtype),)
