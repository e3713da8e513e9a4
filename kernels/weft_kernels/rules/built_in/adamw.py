"""AdamW: Adam whose weights decay by themselves, not through the gradient: w -= lr * weight_decay * w.

Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2, with the decay times the
learning rate, as PyTorch has it: the paper's schedule multiplier is then the rate's schedule.
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
    if hyper["weight_decay"]:
        np.multiply(weight, 1.0 - hyper["lr"] * hyper["weight_decay"], out=weight)
    np.subtract(weight, direction(mean, variance, block.scratch[0], step, hyper), out=weight)


RULE = built_in("adamw", _update, still_without_decay("mean", "variance"), counts=True)
