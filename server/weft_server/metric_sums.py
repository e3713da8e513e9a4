"""Adds the slots' metrics up: a mean over all slots' samples, once every slot has reported it."""

from __future__ import annotations

from weft.api.agent import MetricReport
from weft.api.event import MetricTaken

MOST_OPEN = 4096
"""Incomplete sums kept. Slots of one job are a few steps apart, so more than that are never completed."""


class MetricSums:
    """The sums of one job that some slots have not reported yet."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._open: dict[tuple[str, int], dict[int, MetricReport]] = {}

    def add(self, slot: int, report: MetricReport) -> MetricTaken | None:
        """The mean, once this was the last slot's; a slot's second report of the same step is ignored."""
        place = (report.split, report.step)
        reports = self._open.setdefault(place, {})
        reports.setdefault(slot, report)
        if len(reports) < self._slots:
            if len(self._open) > MOST_OPEN:
                self._open.pop(next(iter(self._open)))
            return None
        del self._open[place]
        return _mean(report, [reports[each] for each in sorted(reports)])


def _mean(like: MetricReport, reports: list[MetricReport]) -> MetricTaken | None:
    samples = sum(report.samples for report in reports)
    if samples == 0:
        return None
    sums: dict[str, float] = {}
    for report in reports:
        for name, value in report.sums.items():
            sums[name] = sums.get(name, 0.0) + value
    values = {name: value / samples for name, value in sums.items()}
    return MetricTaken(split=like.split, step=like.step, values=values, samples=samples)
