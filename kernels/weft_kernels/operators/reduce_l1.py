"""The sum of absolute values over the axes."""

from __future__ import annotations

from typing import Any

from weft_kernels.kernel import Array
from weft_kernels.reductions import reduction, summed

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def _l1(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool) -> Array:
    return summed(xp, xp.abs(data), axes, keepdims=keepdims)


run = reduction(_l1)
