"""RMSProp: g += weight_decay * w; s = decay * s + (1 - decay) * g^2; w -= lr * g / (sqrt(s) + epsilon).

Tieleman and Hinton, "Lecture 6.5 - RMSProp", COURSERA: Neural networks for machine learning, 2012, with epsilon outside
of the root, neither centred nor with momentum: PyTorch's defaults.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.decay import decayed
from weft_kernels.rules.record import Hyper
from weft_kernels.rules.standing import still_without_decay


def _update(block: Block, _step: int, hyper: Hyper) -> None:
    weight, gradient = block.weight, block.gradient
    square, divisor = block.state["square"], block.scratch[0]
    given = decayed(weight, gradient, hyper["weight_decay"], block.scratch[1])
    np.multiply(given, given, out=divisor)
    np.multiply(divisor, 1.0 - hyper["decay"], out=divisor)
    np.multiply(square, hyper["decay"], out=square)
    np.add(square, divisor, out=square)
    np.sqrt(square, out=divisor)
    np.add(divisor, hyper["epsilon"], out=divisor)
    np.divide(given, divisor, out=divisor)
    np.multiply(divisor, hyper["lr"], out=divisor)
    np.subtract(weight, divisor, out=weight)


RULE = built_in("rmsprop", _update, still_without_decay("square"))
