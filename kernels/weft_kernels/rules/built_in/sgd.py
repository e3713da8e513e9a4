"""Stochastic gradient descent: w -= lr * (g + weight_decay * w)."""

from __future__ import annotations

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.record import Hyper
from weft_kernels.rules.standing import still_without_decay


def _update(block: Block, _step: int, hyper: Hyper) -> None:
    weight, gradient = block.weight, block.gradient
    lr, decay = hyper["lr"], hyper["weight_decay"]
    if decay:
        # w - lr * decay * w, before the gradient is taken off: the same sum in one operation less.
        np.multiply(weight, 1.0 - lr * decay, out=weight)
    moved = np.multiply(gradient, lr, out=block.scratch[0])
    np.subtract(weight, moved, out=weight)


RULE = built_in("sgd", _update, still_without_decay(), reads_once=True)
