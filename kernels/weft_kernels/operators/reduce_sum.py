"""The sum over axes."""

from __future__ import annotations

from weft_kernels.reductions import reduction, summed

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


run = reduction(summed)
