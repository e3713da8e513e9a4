"""Metrics that are no finite number, and since which step: a job that has diverged says so at its end. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.api.event import MetricTaken

SHOWN = 3


def wrong_since(before: Mapping[str, int], taken: MetricTaken) -> dict[str, int]:
    """(`SPLIT/NAME` -> first step of those in a row that were not finite), of what is known now."""
    newest = {
        f"{taken.split}/{name}": (value, taken.not_finite.get(name, taken.step)) for name, value in taken.values.items()
    }
    others = {name: since for name, since in before.items() if name not in newest}
    wrong = {name: before.get(name, step) for name, (value, step) in newest.items() if not math.isfinite(value)}
    return others | wrong


def diverged(loss: float, step: int, bad_data: str) -> str:
    """The reason of a job whose loss is not finite, first at that step."""
    if bad_data:
        return f"the loss is {loss} since step {step}, and {bad_data} is not finite: correct the data"
    return f'the loss is {loss} since step {step}: try a smaller lr or clip_norm=1.0, or on_nan="skip"'


def told_not_finite(metrics: Mapping[str, float], since: Mapping[str, int], bad_data: str = "") -> str | None:
    """Which of the metrics are not finite, and since when; None where none of `since` is among them."""
    wrong = [f"{name} is {metrics[name]} since step {step}" for name, step in since.items() if name in metrics]
    if not wrong:
        return None
    more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return f"{', '.join(wrong[:SHOWN])}{more}{f'; {bad_data} is not finite' if bad_data else ''}"
