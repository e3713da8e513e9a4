"""Adagrad: g += weight_decay * w; s += g^2; w -= lr * g / (sqrt(s) + epsilon).

Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR 2011, with
epsilon outside of the root and a sum that may start above 0, as PyTorch has it.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.decay import decayed
from weft_kernels.rules.record import Hyper
from weft_kernels.rules.standing import still_without_decay


def _update(block: Block, _step: int, hyper: Hyper) -> None:
    weight, gradient = block.weight, block.gradient
    total, divisor = block.state["sum"], block.scratch[0]
    given = decayed(weight, gradient, hyper["weight_decay"], block.scratch[1])
    np.multiply(given, given, out=divisor)
    np.add(total, divisor, out=total)
    np.sqrt(total, out=divisor)
    np.add(divisor, hyper["epsilon"], out=divisor)
    np.divide(given, divisor, out=divisor)
    np.multiply(divisor, hyper["lr"], out=divisor)
    np.subtract(weight, divisor, out=weight)


RULE = built_in("adagrad", _update, still_without_decay())
