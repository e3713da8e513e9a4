"""Keeps the average of a weight beside it, whatever rule updates it.

What is kept is how far the average is ahead of the weight, so that 0 says that both are the same: so a row of a table
that was never updated has its first value for an average, and takes no memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from weft_kernels.kernel import Array
from weft_kernels.rules.record import Hyper, Rule, State

AVERAGE: Final = "weft.average"
"""The state's name; a user's rule has none that begins so."""


def share_of(step: int, decay: float | None, start: int) -> float:
    """How much of the average is the newest weight after update `step`, from 1; the first `start` do not count.

    With a decay d and t counted updates (1 - d) / (1 - d^t): exactly the exponential mean of the counted weights, whose
    shares add up to 1 from the first on (the correction of Adam, Kingma and Ba, 2015). Without one 1 / t: all count
    alike (Izmailov et al., "Averaging weights leads to wider optima", 2018).
    """
    counted = step - start
    if counted <= 1:
        return 1.0
    return 1.0 / counted if decay is None else (1.0 - decay) / (1.0 - decay**counted)


def averaged(rule: Rule, decay: float | None, start: int) -> Rule:
    """The rule with one state array more, `AVERAGE`. It goes element by element where the rule does."""

    def apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        ahead, before = state[AVERAGE], weight.copy()
        rule.apply(weight, gradient, {name: state[name] for name in rule.state}, step, hyper)
        ahead += before
        ahead -= weight
        ahead *= ahead.dtype.type(1.0 - share_of(step, decay, start))

    # An average moves on where the weight stands still, by a share that the step decides.
    return replace(rule, state={**rule.state, AVERAGE: 0.0}, apply=apply, apply_over=None, counts=True, still=None)
