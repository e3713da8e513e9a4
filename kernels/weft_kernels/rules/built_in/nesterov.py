"""Nesterov's momentum: g += weight_decay * w; v = momentum * v + g; w -= lr * (g + momentum * v).

Nesterov, "A method for solving the convex programming problem with convergence rate O(1/k^2)", 1983, in the form of
Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning", ICML 2013, for
the weight that is looked ahead from; the rate outside of v, as in `momentum`. ONNX's Momentum with mode "nesterov" and
PyTorch's SGD with `nesterov=True` are the same.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.decay import decayed
from weft_kernels.rules.record import Hyper
from weft_kernels.rules.standing import still_without_decay


def _update(block: Block, _step: int, hyper: Hyper) -> None:
    weight, gradient = block.weight, block.gradient
    velocity, ahead = block.state["momentum"], block.scratch[0]
    given = decayed(weight, gradient, hyper["weight_decay"], block.scratch[1])
    np.multiply(velocity, hyper["momentum"], out=velocity)
    np.add(velocity, given, out=velocity)
    np.multiply(velocity, hyper["momentum"], out=ahead)
    np.add(ahead, given, out=ahead)
    np.multiply(ahead, hyper["lr"], out=ahead)
    np.subtract(weight, ahead, out=weight)


RULE = built_in("nesterov", _update, still_without_decay("momentum"))
