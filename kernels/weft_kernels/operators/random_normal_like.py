"""Normal draws of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.node_draws import node_key, normal, samples_before, seed_of


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    mean, scale = as_float(attributes["mean"]), as_float(attributes["scale"])
    made = (
        mean
        + scale
        * normal(node_key(context, seed_of(attributes)), samples_before(context, data.shape, data.size), data.size)
    ).astype(dtype)
    return (context.xp.asarray(made.reshape(data.shape)),)
