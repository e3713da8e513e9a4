"""Stochastic gradient descent: w -= rate * (g + weight_decay * w)."""

from __future__ import annotations

import math

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.record import Hyper


def _update(block: Block, _step: int, hyper: Hyper) -> None:
    weight, gradient = block.weight, block.gradient
    rate, decay = hyper["rate"], hyper["weight_decay"]
    if decay:
        # w - rate * decay * w, before the gradient is taken off: the same sum in one operation less.
        np.multiply(weight, 1.0 - rate * decay, out=weight)
    moved = np.multiply(gradient, rate, out=block.scratch[0])
    np.subtract(weight, moved, out=weight)


def _idle(hyper: Hyper) -> bool:
    return not hyper["weight_decay"] and math.isfinite(hyper["rate"])


RULE = built_in("sgd", _update, _idle)
