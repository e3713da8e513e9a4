"""The logarithm of the sum of exponentials over the axes."""

from __future__ import annotations

from weft_kernels.reductions import log_of_sum, reduction

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


run = reduction(log_of_sum)
