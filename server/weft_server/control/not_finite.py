"""Metrics that are no finite number, and since which step: a job that has diverged says so at its end. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

SHOWN = 3


def wrong_since(before: Mapping[str, int], newest: Mapping[str, float], step: int) -> dict[str, int]:
    """(metric -> first step of those in a row that were not finite), once the newest of some metrics are there."""
    others = {name: since for name, since in before.items() if name not in newest}
    return others | {name: before.get(name, step) for name, value in newest.items() if not math.isfinite(value)}


def not_finite(metrics: Mapping[str, float], since: Mapping[str, int]) -> str | None:
    """The reason of a job that was trained to its end; None where every metric is finite."""
    wrong = [f"{name} is {metrics[name]} since step {step}" for name, step in since.items() if name in metrics]
    if not wrong:
        return None
    more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return f"trained, but {', '.join(wrong[:SHOWN])}{more}"
