"""Stochastic gradient descent: w -= rate * (g + weight_decay * w)."""

from __future__ import annotations

import numpy as np

from weft_kernels.kernel import Array
from weft_kernels.rules.built_in_rule import built_in
from weft_kernels.rules.record import Hyper, State


def _apply(weight: Array, gradient: Array, _state: State, _step: int, hyper: Hyper) -> None:
    rate, decay = hyper["rate"], hyper["weight_decay"]
    if decay:
        # w - rate * decay * w, before the gradient is taken off: the same sum in one pass and no array more.
        np.multiply(weight, 1.0 - rate * decay, out=weight)
    np.multiply(gradient, rate, out=gradient)
    np.subtract(weight, gradient, out=weight)


RULE = built_in("sgd", _apply)
