"""Uniform draws of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.node_draws import node_key, seed_of, uniform


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    shape = as_ints(attributes["shape"])
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    low, high = as_float(attributes["low"]), as_float(attributes["high"])
    unit = uniform(node_key(context, seed_of(attributes)), 0, math.prod(shape), dtype.name)
    made = (low + unit * (high - low)).astype(dtype)
    return (context.xp.asarray(made.reshape(shape)),)
