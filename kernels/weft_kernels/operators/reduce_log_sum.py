"""The logarithm of the sum over the axes."""

from __future__ import annotations

from typing import Any

from weft_kernels.kernel import Array
from weft_kernels.reductions import reduction, summed

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def _log_sum(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool) -> Array:
    return xp.log(summed(xp, data, axes, keepdims=keepdims))  # type: ignore[no-any-return]  # xp is Any


run = reduction(_log_sum)
