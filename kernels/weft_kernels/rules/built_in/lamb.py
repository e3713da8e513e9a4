"""LAMB: Adam's direction with decay, as long as `trust` times the weight is: for steps of very many samples.

m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2;
u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * w;
w -= lr * trust * (norm(w) / norm(u)) * u, norms over the key.

You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020, algorithm 2 with
phi(x) = x. The ratio is 1 where either norm is 0; with a `trust` of 0 there is no ratio, which leaves AdamW.
"""

from __future__ import annotations

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.kernel import Array
from weft_kernels.rules.built_in_rule import built_in_whole
from weft_kernels.rules.cache_blocks import cache_blocks
from weft_kernels.rules.moments import direction, keep_moments
from weft_kernels.rules.record import Hyper, State
from weft_kernels.rules.square_sums import SquareSum
from weft_kernels.rules.trust import ratio


def _apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
    arrays = (weight, gradient, state["mean"], state["variance"])
    scratch = tuple(np.empty((2, min(weight.size, CACHE_ELEMENTS)), weight.dtype))
    unscaled = {**hyper, "lr": 1.0}
    of_weight, of_update = SquareSum(), SquareSum()
    for w, g, mean, variance in cache_blocks(arrays):
        keep_moments(mean, variance, g, scratch[0][: w.size], hyper)
        of_weight.add(w)
        of_update.add(_update(w, (mean, variance), scratch, step, unscaled))
    moved = hyper["lr"] * ratio(of_weight.root(), of_update.root(), hyper["trust"])
    # The update is worked out again: that reads three arrays, as keeping it would write and read one more.
    for w, _, mean, variance in cache_blocks(arrays):
        update = _update(w, (mean, variance), scratch, step, unscaled)
        np.multiply(update, moved, out=update)
        np.subtract(w, update, out=w)


def _update(weight: Array, moments: tuple[Array, Array], scratch: tuple[Array, ...], step: int, hyper: Hyper) -> Array:
    mean, variance = moments
    update = direction(mean, variance, scratch[0][: weight.size], step, hyper)
    if hyper["weight_decay"]:
        decay = np.multiply(weight, hyper["weight_decay"], out=scratch[1][: weight.size])
        np.add(update, decay, out=update)
    return update


RULE = built_in_whole("lamb", _apply)
