"""Rules on float16 keys: computed in float32, a block at a time, and rounded once.

float16 has no number below 6e-8 and none above 65504: Adam's epsilon would be 0, and the square of a gradient of 1e-4
as well. State stays as narrow as the key, so a sum of squares may leave that range too. It is held inside: what is not
0 does not become 0, by which a later step would be divided, and nothing becomes infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.kernel import Array
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
        for block in (arrays,) if whole else _blocks(arrays):
            wide = [array.astype(np.float32) for array in block]
            apply(wide[0], wide[1], dict(zip(state, wide[2:], strict=True)), step, hyper)
            with np.errstate(over="ignore"):
                block[0][...] = wide[0]
            for narrow, computed in zip(block[2:], wide[2:], strict=True):
                _keep(narrow, computed)

    return run


def _blocks(arrays: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Views of the same elements of each array; the arrays themselves where they are not in one piece."""
    if not all(array.flags.c_contiguous for array in arrays):
        yield arrays
        return
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, CACHE_ELEMENTS):
        yield tuple(array[start : start + CACHE_ELEMENTS] for array in flat)


def _keep(state: Array, computed: Array) -> None:
    """Rounds float32 into a float16 state; `as_state` of the CUDA sources does the same."""
    state[...] = np.clip(computed, -_LARGEST, _LARGEST)
    lost = (state == 0) & (computed != 0)
    if lost.any():
        state[lost] = np.copysign(_SMALLEST, computed[lost])
