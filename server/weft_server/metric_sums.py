"""Adds the slots' metrics up: a mean over all slots' samples, once every slot has reported it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft.api.agent import MetricReport
from weft.api.event import MetricTaken
from weft_server.memory import SUM, Parts, under

_Place = tuple[str, int]
"""(split, step)."""

MOST_OPEN = 1024
"""Incomplete sums kept. Slots of one job are a few steps apart, so more than that are never completed."""


class MetricSums:
    """The sums of one job that some slots have not reported yet. They are written down in `parts`.

    What an earlier process has `written` is taken up.
    """

    def __init__(self, slots: int, parts: Parts, written: Mapping[str, str] = MappingProxyType({})) -> None:
        self._slots = slots
        self._parts = parts
        self._open: dict[_Place, dict[int, MetricReport]] = {}
        for name, document in under(written, SUM):
            report = MetricReport.model_validate_json(document)
            slot = int(name.rsplit("/", 1)[1])
            self._open.setdefault((report.split, report.step), {})[slot] = report
            self._parts.put(name, report, report.model_dump_json)

    def add(self, slot: int, report: MetricReport) -> MetricTaken | None:
        """The mean, once this was the last slot's; a slot's second report of the same step is ignored."""
        place = (report.split, report.step)
        reports = self._open.setdefault(place, {})
        if slot not in reports:
            reports[slot] = report
            if len(reports) < self._slots:
                self._parts.put(_part(place, slot), report, report.model_dump_json)
        if len(reports) < self._slots:
            if len(self._open) > MOST_OPEN:
                self._take(next(iter(self._open)))
            return None
        self._take(place)
        return _mean(report, [reports[each] for each in sorted(reports)])

    def clear(self) -> None:
        """The job begins again."""
        for place in list(self._open):
            self._take(place)

    def _take(self, place: _Place) -> None:
        for slot in self._open.pop(place):
            self._parts.drop(_part(place, slot))


def _part(place: _Place, slot: int) -> str:
    split, step = place
    return f"{SUM}{split}/{step}/{slot}"


def _mean(like: MetricReport, reports: list[MetricReport]) -> MetricTaken | None:
    samples = sum(report.samples for report in reports)
    if samples == 0:
        return None
    sums: dict[str, float] = {}
    for report in reports:
        for name, value in report.sums.items():
            sums[name] = sums.get(name, 0.0) + value
    values = {name: value / samples for name, value in sums.items()}
    since: dict[str, int] = {}
    bad: list[tuple[int, str]] = []
    for report in reports:
        for name, step in report.not_finite.items():
            since[name] = min(step, since.get(name, step))
        if report.bad_data:
            bad.append((min(report.not_finite.values(), default=report.step), report.bad_data))
    return MetricTaken(
        split=like.split,
        step=like.step,
        values=values,
        samples=samples,
        not_finite=since,
        bad_data=min(bad, default=(0, ""))[1],
    )
