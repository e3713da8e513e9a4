"""Adam with bias correction: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1.

m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2;
w -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon).
"""

from __future__ import annotations

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.moments import direction, keep_moments
from weft_kernels.rules.record import Hyper
from weft_kernels.rules.standing import still_without_decay


def _update(block: Block, step: int, hyper: Hyper) -> None:
    weight, mean, variance = block.weight, block.state["mean"], block.state["variance"]
    keep_moments(mean, variance, block.gradient, block.scratch[0], hyper)
    np.subtract(weight, direction(mean, variance, block.scratch[0], step, hyper), out=weight)


RULE = built_in("adam", _update, still_without_decay("mean", "variance"), counts=True)
