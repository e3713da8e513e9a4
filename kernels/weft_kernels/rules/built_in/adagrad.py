"""Adagrad: g += weight_decay * w; s += g^2; w -= rate * g / (sqrt(s) + epsilon).

Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR 2011, with
epsilon outside of the root and a sum that may start above 0, as PyTorch has it.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.kernel import Array
from weft_kernels.rules.built_in_rule import built_in
from weft_kernels.rules.record import Hyper, State


def _apply(weight: Array, gradient: Array, state: State, _step: int, hyper: Hyper) -> None:
    total = state["sum"]
    if hyper["weight_decay"]:
        scratch = np.multiply(weight, hyper["weight_decay"])
        np.add(gradient, scratch, out=gradient)
        np.multiply(gradient, gradient, out=scratch)
    else:
        scratch = np.multiply(gradient, gradient)
    np.add(total, scratch, out=total)
    np.sqrt(total, out=scratch)
    np.add(scratch, hyper["epsilon"], out=scratch)
    np.divide(gradient, scratch, out=gradient)
    np.multiply(gradient, hyper["rate"], out=gradient)
    np.subtract(weight, gradient, out=weight)


RULE = built_in("adagrad", _apply)
