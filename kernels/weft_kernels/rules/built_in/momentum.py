"""Gradient descent with momentum: v = momentum * v + g + weight_decay * w; w -= rate * v.

Polyak, "Some methods of speeding up the convergence of iteration methods", 1964; the rate outside of v, as Sutskever,
Martens, Dahl and Hinton (2013) do not have it and PyTorch does, so that a new rate takes hold at once.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.kernel import Array
from weft_kernels.rules.built_in_rule import built_in
from weft_kernels.rules.record import Hyper, State


def _apply(weight: Array, gradient: Array, state: State, _step: int, hyper: Hyper) -> None:
    velocity = state["momentum"]
    np.multiply(velocity, hyper["momentum"], out=velocity)
    np.add(velocity, gradient, out=velocity)
    if hyper["weight_decay"]:
        # The gradient is used up: its memory holds the two products.
        np.multiply(weight, hyper["weight_decay"], out=gradient)
        np.add(velocity, gradient, out=velocity)
    np.multiply(velocity, hyper["rate"], out=gradient)
    np.subtract(weight, gradient, out=weight)


RULE = built_in("momentum", _apply)
