"""Which numbers the hyper-parameters of a key may be: such as are finite in its type, multiplied for it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft_graph.rules.schedule import schedule_from_json
from weft_kvstore.description.records import KeyDescription


def most_of(key: KeyDescription, name: str) -> float:
    """The largest magnitude that a hyper-parameter may have; the rule computes in the key's own type."""
    stretch = abs(key.multipliers.get(name, 1.0))
    return float(np.finfo(key.dtype).max) / stretch if stretch else math.inf


def told_beyond(key: KeyDescription, name: str, value: float) -> str:
    """In words: the number is beyond what it may be."""
    stretched = f", multiplied by {key.multipliers[name]:g}" if name in key.multipliers else ""
    return f"{name!r}: {value:g}{stretched} is infinite in {key.dtype}, which key {key.key!r} is of"


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
