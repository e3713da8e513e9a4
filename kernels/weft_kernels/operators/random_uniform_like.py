"""Uniform draws of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.node_draws import node_key, samples_before, seed_of, uniform


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    low, high = as_float(attributes["low"]), as_float(attributes["high"])
    unit = uniform(
        node_key(context, seed_of(attributes)), samples_before(context, data.shape, data.size), data.size, dtype.name
    )
    made = (low + unit * (high - low)).astype(dtype)
    return (context.xp.asarray(made.reshape(data.shape)),)
