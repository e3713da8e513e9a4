"""A matrix view of the array where its layout allows one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    axis = as_int(attributes["axis"])
    axis = axis + data.ndim if axis < 0 else axis
    # Both sides are computed: -1 is ambiguous where the array is empty.
    return (data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:])),)
