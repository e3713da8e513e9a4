"""Weight decay as a part of the gradient: g + weight_decay * w."""

from __future__ import annotations

import numpy as np

from weft_kernels.kernel import Array


def decayed(weight: Array, gradient: Array, weight_decay: float, scratch: Array) -> Array:
    """The gradient with the decay's, in `scratch`; the gradient itself where there is no decay."""
    if not weight_decay:
        return gradient
    np.multiply(weight, weight_decay, out=scratch)
    return np.add(gradient, scratch, out=scratch)
