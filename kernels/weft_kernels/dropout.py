"""What Dropout and its gradient agree on: the ratio in force, and which elements are kept."""

from __future__ import annotations

from typing import Final

import numpy as np

from weft_kernels.cuda import draws as cuda
from weft_kernels.cuda.module import has_kernels
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.random import draws, step_key

DEFAULT_RATIO: Final = 0.5


def ratio_in_force(ratio: Array | None, training_mode: Array | None) -> float:
    """The probability that an element is dropped: 0 outside training. Raises ValueError outside [0, 1)."""
    if training_mode is None or not bool(training_mode):
        return 0.0
    number = DEFAULT_RATIO if ratio is None else float(ratio)
    if not 0 <= number < 1:
        raise ValueError(f"ratio {number} is outside [0, 1)")
    return number


def kept(context: KernelContext, data: Array, ratio: float, seed: int | None) -> Array:
    """Which elements are kept, bool, of the data's shape.

    Element e of the step's sample s has draw `s * (elements of a sample) + e` of the stream of (seed, node, step), so
    the mask does not depend on how the step's batch is cut. A node's own `seed` takes the job's place.
    """
    samples = context.samples if context.samples is not None else data.shape[0] if data.ndim else 1
    start = context.first_sample * (data.size // samples) if samples else 0
    key = step_key(context.seed if seed is None else seed, context.node, context.step)
    # A draw is below ratio * 2^64 with probability `ratio`; the product is exact.
    threshold = int(ratio * 2.0**64)
    if has_kernels(context.xp):
        return cuda.kept(context.xp, key, start, data.shape, threshold)
    mask = draws(key, start, data.size) >= np.uint64(threshold)
    return context.xp.asarray(mask.reshape(data.shape))  # type: ignore[no-any-return]  # xp is Any
