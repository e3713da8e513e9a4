"""FTRL-Proximal: a learner whose weights are exactly 0 where their gradients do not add up to more than `l1`.

s = (sqrt(n + g^2) - sqrt(n)) / lr; z += g - s * w; n += g^2;
w = 0 where |z| <= l1, and -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2) elsewhere.

McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1, whose alpha is `lr`. The
weight is a function of z and n: what it begins at counts for its first update alone. A rate of 0 moves nothing.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.rules.built_in_rule import Block, built_in
from weft_kernels.rules.record import Hyper


def _update(block: Block, _step: int, hyper: Hyper) -> None:
    if not hyper["lr"]:
        return  # The limit: what is divided by the rate would be no number.
    weight, gradient = block.weight, block.gradient
    total, squares = block.state["total"], block.state["squares"]
    part, root = block.scratch
    per_lr, l1 = 1.0 / hyper["lr"], hyper["l1"]
    np.sqrt(squares, out=part)
    np.multiply(gradient, gradient, out=root)
    np.add(squares, root, out=squares)
    np.sqrt(squares, out=root)
    np.subtract(root, part, out=part)
    np.multiply(part, per_lr, out=part)
    np.multiply(part, weight, out=part)
    np.subtract(gradient, part, out=part)
    np.add(total, part, out=total)
    # clip(z) - z is 0 within l1 and -(z - sign(z) * l1) beyond: both cases without a choice.
    np.clip(total, -l1, l1, out=part)
    np.subtract(part, total, out=part)
    np.multiply(root, per_lr, out=root)
    np.add(root, hyper["beta"] * per_lr + hyper["l2"], out=root)
    np.divide(part, root, out=weight)


RULE = built_in("ftrl", _update)
