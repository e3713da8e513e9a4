"""Normal draws of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.node_draws import node_key, normal, seed_of


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    shape = as_ints(attributes["shape"])
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    mean, scale = as_float(attributes["mean"]), as_float(attributes["scale"])
    made = (mean + scale * normal(node_key(context, seed_of(attributes)), 0, math.prod(shape))).astype(dtype)
    return (context.xp.asarray(made.reshape(shape)),)
