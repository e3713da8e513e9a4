"""Schedules as a script writes them: hyper-parameters that change with the job's step.

Each of them may begin behind a warm-up: `warmup` steps on a straight line from `warmup_start` to the first value. Steps
and boundaries count from its end. All raise ArgumentError, which names the argument.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.api import schedule
from weft.arguments import checked, says_its_words


@says_its_words
def warmup(value: float, steps: int, *, start: float = 0.0) -> schedule.Constant:
    """From `start` to `value` within `steps`, and `value` from there on."""
    with checked("warmup"):
        return schedule.Constant(value=value, warmup=schedule.Warmup(steps=steps, start=start))


@says_its_words
def linear(
    start: float, end: float = 0.0, *, steps: int, begin: int = 0, warmup: int = 0, warmup_start: float = 0.0
) -> schedule.Linear:
    """From `start` to `end` in a straight line over `steps` steps, after `begin` steps at `start`."""
    with checked("linear"):
        return schedule.Linear(start=start, end=end, steps=steps, begin=begin, warmup=_warmup(warmup, warmup_start))


@says_its_words
def cosine(
    start: float, end: float = 0.0, *, steps: int, begin: int = 0, warmup: int = 0, warmup_start: float = 0.0
) -> schedule.Cosine:
    """From `start` to `end` along half a cosine wave over `steps` steps, after `begin` steps at `start`."""
    with checked("cosine"):
        return schedule.Cosine(start=start, end=end, steps=steps, begin=begin, warmup=_warmup(warmup, warmup_start))


@says_its_words
def polynomial(
    start: float,
    end: float = 0.0,
    *,
    steps: int,
    power: float,
    begin: int = 0,
    warmup: int = 0,
    warmup_start: float = 0.0,
) -> schedule.Polynomial:
    """end + (start - end) * (1 - t) ** power, t from 0 to 1 over `steps` steps, after `begin` steps at `start`."""
    with checked("polynomial"):
        before = _warmup(warmup, warmup_start)
        return schedule.Polynomial(start=start, end=end, steps=steps, power=power, begin=begin, warmup=before)


@says_its_words
def exponential(
    start: float,
    factor: float,
    *,
    steps: int,
    end: float | None = None,
    staircase: bool = False,
    begin: int = 0,
    warmup: int = 0,
    warmup_start: float = 0.0,
) -> schedule.Exponential:
    """`start`, and `factor` times as much after every `steps` steps, never beyond `end`; in stairs if `staircase`."""
    with checked("exponential"):
        return schedule.Exponential(
            start=start,
            factor=factor,
            steps=steps,
            end=end,
            staircase=staircase,
            begin=begin,
            warmup=_warmup(warmup, warmup_start),
        )


@says_its_words
def piecewise(
    start: float, factors: Mapping[int, float], *, warmup: int = 0, warmup_start: float = 0.0
) -> schedule.Piecewise:
    """`start`, times each factor from its step on: `{1000: 0.1, 2000: 0.1}` ends at a hundredth."""
    with checked("piecewise"):
        boundaries = [schedule.Boundary(step=step, factor=factor) for step, factor in sorted(factors.items())]
        return schedule.Piecewise(start=start, boundaries=boundaries, warmup=_warmup(warmup, warmup_start))


def _warmup(steps: int, start: float) -> schedule.Warmup | None:
    return None if steps == 0 else schedule.Warmup(steps=steps, start=start)
