"""The largest that the hyper-parameters of a rule get over a run: what has to be finite where the rule computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft_graph.rules.schedule import schedule_from_json


def largest(values: Mapping[str, float | Mapping[str, Any]]) -> dict[str, float]:
    """The largest that each hyper-parameter gets, in magnitude: of a schedule that grows without end, what of it is
    known to be reached. Raises GraphFormatError for a schedule that is none."""
    found: dict[str, float] = {}
    for name, value in values.items():
        ends: tuple[float, ...] = (float(value),) if not isinstance(value, Mapping) else ()
        if isinstance(value, Mapping):
            schedule = schedule_from_json(value)
            ends = (schedule.at(0), *(one for one in schedule.bounds() if math.isfinite(one)))
        found[name] = max(ends, key=abs)
    return found
