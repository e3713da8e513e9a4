"""A key's hyper-parameters: the job's numbers and schedules, times the key's multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft_graph.rules.schedule import Schedule, schedule_from_json
from weft_kernels.rules.record import Hyper


class KeyHyper:
    """`at(step)` gives the numbers for the update of that step, counted from 0.

    Numbers that never change are made once; of schedules the last step is kept, since all slices of a key ask for it.
    """

    __slots__ = ("_last", "_multipliers", "_schedules", "_step")

    def __init__(self, values: Mapping[str, float | Mapping[str, Any]], multipliers: Mapping[str, float]) -> None:
        """Raises GraphFormatError for a schedule that there is not."""
        self._multipliers = dict(multipliers)
        self._schedules: dict[str, Schedule] = {
            name: schedule_from_json(value) for name, value in values.items() if isinstance(value, Mapping)
        }
        numbers = {name: float(value) for name, value in values.items() if not isinstance(value, Mapping)}
        self._last: Hyper = {name: value * self._factor(name) for name, value in numbers.items()}
        self._step = -1

    def at(self, step: int) -> Hyper:
        if self._schedules and step != self._step:
            now = {name: schedule.at(step) * self._factor(name) for name, schedule in self._schedules.items()}
            self._last = {**self._last, **now}
            self._step = step
        return self._last

    def _factor(self, name: str) -> float:
        return self._multipliers.get(name, 1.0)
