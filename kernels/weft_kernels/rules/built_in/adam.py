"""Adam with bias correction: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1.

m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2;
w -= rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon).
"""

from __future__ import annotations

import math

import numpy as np

from weft_kernels.kernel import Array
from weft_kernels.rules.built_in_rule import built_in
from weft_kernels.rules.record import Hyper, State


def _apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    mean, variance = state["mean"], state["variance"]
    scratch = np.multiply(gradient, 1.0 - beta1)
    np.multiply(mean, beta1, out=mean)
    np.add(mean, scratch, out=mean)
    np.multiply(gradient, gradient, out=gradient)
    np.multiply(gradient, 1.0 - beta2, out=gradient)
    np.multiply(variance, beta2, out=variance)
    np.add(variance, gradient, out=variance)
    # Both corrections are numbers, so they are folded into the passes over the arrays.
    np.sqrt(variance, out=scratch)
    np.multiply(scratch, 1.0 / math.sqrt(1.0 - beta2**step), out=scratch)
    np.add(scratch, hyper["epsilon"], out=scratch)
    np.divide(mean, scratch, out=scratch)
    np.multiply(scratch, hyper["rate"] / (1.0 - beta1**step), out=scratch)
    np.subtract(weight, scratch, out=weight)


RULE = built_in("adam", _apply)
