"""What the hyper-parameters of a rule get over a run, and what of it a rule cannot compute with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from weft_graph.rules.schedule import schedule_from_json

LEAST: Final = float(np.finfo(np.float32).tiny)
"""The smallest number above 0 that a rule may get for a key of float32, or of less, which is computed in float32: what
is below is 0 where a processor rounds so."""


def ends(values: Mapping[str, float | Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Numbers that each hyper-parameter gets or comes near to, its largest and smallest among them: of a schedule that
    grows without end, what of it is known to be reached. Raises GraphFormatError for a schedule that is none."""
    found: dict[str, tuple[float, ...]] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            schedule = schedule_from_json(value)
            found[name] = (schedule.at(0), *(one for one in schedule.bounds() if math.isfinite(one)))
        else:
            found[name] = (float(value),)
    return found


def largest(values: Mapping[str, float | Mapping[str, Any]]) -> dict[str, float]:
    """The largest that each hyper-parameter gets, in magnitude. Raises GraphFormatError as `ends` does."""
    return {name: max(each, key=abs) for name, each in ends(values).items()}


def out_of_range(number: float, dtype: str, factor: float = 1.0) -> str | None:
    """Why a rule cannot compute with the number times the factor for keys of that type, in words; None where it can."""
    if not number or not factor:
        return None
    if abs(number) > float(np.finfo(dtype).max) / abs(factor):
        return f"is infinite in {dtype}"
    if dtype != "float64" and abs(number) < LEAST / abs(factor):
        return f"is too small for float32: give 0, or at least {LEAST:g}"
    return None
