"""Each element put where its index says; where two have one index, the later stays on a CPU, either on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.unpooling import unpooled
from weft_kernels.arguments import optional, required
from weft_kernels.indexing.rows import checked_indices
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (2,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, indices = required(inputs, 2)
    shape = (*data.shape[:2], *unpooled(data.shape[2:], attributes.get))
    index = checked_indices(xp, indices, math.prod(shape), wraps=False).reshape(-1)
    result = xp.zeros(math.prod(shape), dtype=data.dtype)
    result[index] = data.reshape(-1)
    result = result.reshape(shape)
    asked = optional(inputs, 2)
    if asked is None or tuple(asked.tolist()) == shape:
        return (result,)
    target = tuple(int(length) for length in asked.tolist())
    if len(target) != len(shape) or any(given < natural for given, natural in zip(target, shape, strict=True)):
        raise ValueError(f"output_shape {list(target)} is smaller than the windows': {list(shape)}")
    # Indices are places of the windows' own shape; what is asked for beyond it is zeros behind.
    wider = xp.zeros(target, dtype=data.dtype)
    wider[tuple(slice(length) for length in shape)] = result
    return (wider,)
