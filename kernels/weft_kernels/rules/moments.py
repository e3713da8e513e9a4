"""Adam's means of the gradient and of its square, and the direction that they give: shared by Adam, AdamW and LAMB."""

from __future__ import annotations

import math

import numpy as np

from weft_kernels.kernel import Array
from weft_kernels.rules.record import Hyper


def keep_moments(mean: Array, variance: Array, gradient: Array, scratch: Array, hyper: Hyper) -> None:
    """mean = beta1 * mean + (1 - beta1) * g; variance = beta2 * variance + (1 - beta2) * g^2, in place."""
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    np.multiply(gradient, 1.0 - beta1, out=scratch)
    np.multiply(mean, beta1, out=mean)
    np.add(mean, scratch, out=mean)
    np.multiply(gradient, gradient, out=scratch)
    np.multiply(scratch, 1.0 - beta2, out=scratch)
    np.multiply(variance, beta2, out=variance)
    np.add(variance, scratch, out=variance)


def direction(mean: Array, variance: Array, scratch: Array, step: int, hyper: Hyper) -> Array:
    """lr * (mean / (1 - beta1^t)) / (sqrt(variance / (1 - beta2^t)) + epsilon), in `scratch`.

    Both corrections are numbers: they are folded into the rate and the epsilon, as section 2 of Adam's paper does, but
    here without changing what epsilon means.
    """
    root = math.sqrt(1.0 - hyper["beta2"] ** step)
    np.sqrt(variance, out=scratch)
    np.add(scratch, hyper["epsilon"] * root, out=scratch)
    np.divide(mean, scratch, out=scratch)
    return np.multiply(scratch, hyper["lr"] * root / (1.0 - hyper["beta1"] ** step), out=scratch)
