"""The smallest element over the axes."""

from __future__ import annotations

from functools import partial

from weft_kernels.reductions import extreme, reduction

HOST_INPUTS = (1,)


run = reduction(partial(extreme, largest=False))
