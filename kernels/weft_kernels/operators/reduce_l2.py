"""The square root of the sum of squares over the axes."""

from __future__ import annotations

from typing import Any

from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array
from weft_kernels.reductions import reduction, summed

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def _l2(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool) -> Array:
    wide = data.astype(statistics_dtype(xp, data), copy=False)
    total = summed(xp, xp.square(wide), axes, keepdims=keepdims)
    return xp.sqrt(total).astype(data.dtype, copy=False)  # type: ignore[no-any-return]  # xp is Any


run = reduction(_l2)
