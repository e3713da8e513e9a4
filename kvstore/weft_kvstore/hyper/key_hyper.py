"""A key's hyper-parameters: the job's numbers and schedules, what was changed since, and the key's multipliers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from weft_graph.rules.schedule import Schedule, schedule_from_json
from weft_kernels.rules.record import Hyper
from weft_kvstore.hyper.timeline import HyperTimeline


class KeyHyper:
    """`at(step)` gives the numbers for the update of that step, counted from 0.

    Numbers that never change are made once; else the last step is kept, since all slices of a key ask for it. A changed
    number takes the place of the schedule from there on. What was changed for this key alone is in `own`, and stands
    before what was changed for the whole job.
    """

    __slots__ = ("_base", "_described", "_job", "_last", "_multipliers", "_schedules", "_when", "own")

    def __init__(
        self,
        values: Mapping[str, float | Mapping[str, Any]],
        multipliers: Mapping[str, float],
        *,
        job: HyperTimeline | None = None,
        described: Collection[str] = (),
        own: HyperTimeline | None = None,
    ) -> None:
        """`job` has what is changed for the whole job, but for the numbers `described`, which the key has for itself.

        Raises GraphFormatError for a schedule that there is not.
        """
        self.own = HyperTimeline() if own is None else own
        self._job = HyperTimeline() if job is None else job
        self._described = frozenset(described)
        self._multipliers = dict(multipliers)
        self._schedules: dict[str, Schedule] = {
            name: schedule_from_json(value) for name, value in values.items() if isinstance(value, Mapping)
        }
        numbers = {name: float(value) for name, value in values.items() if not isinstance(value, Mapping)}
        self._base: Hyper = {name: value * self._factor(name) for name, value in numbers.items()}
        self._last: Hyper = self._base
        self._when = (-1, 0)

    def at(self, step: int) -> Hyper:
        changes = self._job.count + self.own.count
        if not changes and not self._schedules:
            return self._base
        if self._when != (step, changes):
            now = {name: schedule.at(step) for name, schedule in self._schedules.items()}
            now |= {name: value for name, value in self._job.at(step).items() if name not in self._described}
            now |= self.own.at(step)
            self._last = {**self._base, **{name: value * self._factor(name) for name, value in now.items()}}
            self._when = (step, changes)
        return self._last

    def _factor(self, name: str) -> float:
        return self._multipliers.get(name, 1.0)
