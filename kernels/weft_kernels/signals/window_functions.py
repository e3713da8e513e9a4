"""Windows that are sums of cosines: Harris, "On the use of windows for harmonic analysis", 1978."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.casting import cast
from weft_kernels.kernel import Array, KernelContext


def cosine_window(
    context: KernelContext,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, AttributeValue],
    coefficients: Sequence[float],
) -> Array:
    """The sum of coefficients[k] * cos(2 pi k n / N) for n below `size`; N is the size, or less by 1 if not periodic.

    Computed in float64 and rounded once. A window of one element is 1. Raises ValueError for a size below 0.
    """
    (given,) = required(inputs)
    size = int(given.reshape(-1)[0])
    if size < 0:
        raise ValueError(f"size {size} is below 0")
    period = max(size if as_int(attributes["periodic"]) else size - 1, 1)
    angles = 2 * math.pi / period * np.arange(size)
    window = sum((factor * np.cos(k * angles) for k, factor in enumerate(coefficients)), start=np.zeros(size))
    made = np.ones(1) if size == 1 else window
    return cast(context.xp, context.xp.asarray(made), DTYPE_OF_NUMBER[as_int(attributes["output_datatype"])])
