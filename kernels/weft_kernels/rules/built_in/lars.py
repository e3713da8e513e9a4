"""LARS: momentum whose steps are as long as `trust` times the weight is, layer by layer: for steps of many samples.

r = trust * norm(w) / (norm(g) + weight_decay * norm(w)), norms over the key;
v = momentum * v + lr * r * (g + weight_decay * w); w -= v.

You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017, algorithm 1: the rate is inside of v.
r is 1 where either of its parts is 0, and where `trust` is 0.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.kernel import Array
from weft_kernels.rules.built_in_rule import built_in_whole
from weft_kernels.rules.cache_blocks import cache_blocks
from weft_kernels.rules.decay import decayed
from weft_kernels.rules.record import Hyper, State
from weft_kernels.rules.square_sums import SquareSum
from weft_kernels.rules.trust import ratio


def _apply(weight: Array, gradient: Array, state: State, _step: int, hyper: Hyper) -> None:
    decay = hyper["weight_decay"]
    of_weight, of_gradient = SquareSum(), SquareSum()
    for w, g in cache_blocks((weight, gradient)):
        of_weight.add(w)
        of_gradient.add(g)
    norm = of_weight.root()
    lr = hyper["lr"] * ratio(norm, of_gradient.root() + decay * norm, hyper["trust"])
    scratch = np.empty(min(weight.size, CACHE_ELEMENTS), weight.dtype)
    for w, g, velocity in cache_blocks((weight, gradient, state["momentum"])):
        moved = scratch[: w.size]
        np.multiply(decayed(w, g, decay, moved), lr, out=moved)
        np.multiply(velocity, hyper["momentum"], out=velocity)
        np.add(velocity, moved, out=velocity)
        np.subtract(w, velocity, out=w)


RULE = built_in_whole("lars", _apply)
