"""Gradient descent with momentum: v = momentum * v + g + weight_decay * w; w -= lr * v.

Polyak, "Some methods of speeding up the convergence of iteration methods", 1964; the rate outside of v, as Sutskever,
Martens, Dahl and Hinton (2013) do not have it and PyTorch does, so that a new rate takes hold at once.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.record import Hyper
from weft_kernels.rules.standing import still_without_decay


def _update(block: Block, _step: int, hyper: Hyper) -> None:
    weight, gradient = block.weight, block.gradient
    velocity, moved = block.state["momentum"], block.scratch[0]
    np.multiply(velocity, hyper["momentum"], out=velocity)
    np.add(velocity, gradient, out=velocity)
    if hyper["weight_decay"]:
        np.multiply(weight, hyper["weight_decay"], out=moved)
        np.add(velocity, moved, out=velocity)
    np.multiply(velocity, hyper["lr"], out=moved)
    np.subtract(weight, moved, out=weight)


RULE = built_in("momentum", _update, still_without_decay("momentum"), reads_once=True)
