"""The mean over axes."""

from __future__ import annotations

from typing import Any

from weft_kernels.kernel import Array
from weft_kernels.reductions import reduction

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def _mean(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool) -> Array:
    return xp.mean(data, axis=axes, keepdims=keepdims, dtype=data.dtype) if axes else data


run = reduction(_mean)
