"""Which numbers of a built-in rule leave its weights where they are when a gradient is zero."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from weft_kernels.rules.record import Hyper, Still

_LEAST_EPSILON: Final = float(np.finfo(np.float32).tiny) * 1024
"""A smaller one, times Adam's correction of a first step, may be 0 in float32, and 0 / 0 is no number."""


def still_without_decay(*states: str) -> Still:
    """Where these states are 0, a weight that does not decay stands still."""

    def still(hyper: Hyper) -> tuple[str, ...] | None:
        moves = hyper.get("weight_decay", 0.0) or not 0 <= hyper["lr"] < math.inf
        return None if moves or hyper.get("epsilon", 1.0) < _LEAST_EPSILON else states

    return still
