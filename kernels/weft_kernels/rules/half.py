"""Rules on float16 keys: computed in float32, a block at a time, and rounded once.

float16 has no number below 6e-8 and none above 65504: Adam's epsilon would be 0, and the square of a gradient of 1e-4
as well. State stays as narrow as the key, so a sum of squares may leave that range too. It is held inside: what is not
0 does not become 0, by which a later step would be divided, and nothing becomes infinite.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from weft_kernels.kernel import Array
from weft_kernels.rules.cache_blocks import cache_blocks
from weft_kernels.rules.record import Apply, Hyper, State

_LARGEST: Final = np.float32(np.finfo(np.float16).max)
_SMALLEST: Final = np.finfo(np.float16).smallest_subnormal


def with_half(apply: Apply, *, whole: bool = False) -> Apply:
    """The same rule for float16 keys too, which `apply` meets as float32: in blocks, unless it needs them `whole`."""

    def run(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        if weight.dtype != np.float16:
            apply(weight, gradient, state, step, hyper)
            return
        arrays = (weight, gradient, *state.values())
        for block in (arrays,) if whole else cache_blocks(arrays):
            wide = [array.astype(np.float32) for array in block]
            apply(wide[0], wide[1], dict(zip(state, wide[2:], strict=True)), step, hyper)
            with np.errstate(over="ignore"):
                block[0][...] = wide[0]
            for narrow, computed in zip(block[2:], wide[2:], strict=True):
                _keep(narrow, computed)

    return run


def _keep(state: Array, computed: Array) -> None:
    """Rounds float32 into a float16 state; `as_state` of the CUDA sources does the same."""
    state[...] = np.clip(computed, -_LARGEST, _LARGEST)
    lost = (state == 0) & (computed != 0)
    if lost.any():
        state[lost] = np.copysign(_SMALLEST, computed[lost])
