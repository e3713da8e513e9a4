"""The metrics of one job: a mean over all slots' samples, once every slot has reported it, told once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft.api.agent import MetricReport
from weft.api.event import MetricTaken
from weft_server.control.memory import SUM, Parts, RunState, under

_Step = tuple[str, int]
"""(split, step)."""

MOST_OPEN = 1024
"""Incomplete sums kept. Slots of one job are a few steps apart, so more than that are never completed."""


class RunMetrics:
    """The newest steps that were told are remembered by split: what is done again after a loss is told once."""

    def __init__(self, state: RunState, written: Mapping[str, str]) -> None:
        self._state = state
        self._sums = MetricSums(state.plan.workers, state.parts, written)

    def begin_anew(self) -> None:
        """The job goes on from a snapshot, with as many workers as its plan says now."""
        self._sums.clear()
        self._sums = MetricSums(self._state.plan.workers, self._state.parts)

    def take(self, slot: int, report: MetricReport) -> tuple[MetricTaken, bool] | None:
        """(means, whether they are new), once all slots have reported a step. Metrics of other names than the job has
        are left out."""
        taken = self._sums.add(slot, self._known(report))
        if taken is None:
            return None
        memory = self._state.memory
        is_new = taken.step > memory.measured.get(taken.split, -1)
        if is_new:
            memory.measured = {**memory.measured, taken.split: taken.step}
        return taken, is_new

    def unknown(self, report: MetricReport) -> list[str]:
        """Names in the report that the job has not."""
        names = self._state.plan.metric_names
        told = dict.fromkeys((*report.sums, *report.not_finite))
        return [] if names is None else [name for name in told if name not in names]

    def _known(self, report: MetricReport) -> MetricReport:
        unknown = self.unknown(report)
        if not unknown:
            return report
        kept = ({k: v for k, v in each.items() if k not in unknown} for each in (report.sums, report.not_finite))
        return report.model_copy(update=dict(zip(("sums", "not_finite"), kept, strict=True)))


class MetricSums:
    """The sums of one job that some slots have not reported yet. They are written down in `parts`.

    What an earlier process has `written` is taken up.
    """

    def __init__(self, slots: int, parts: Parts, written: Mapping[str, str] = MappingProxyType({})) -> None:
        self._slots = slots
        self._parts = parts
        self._open: dict[_Step, dict[int, MetricReport]] = {}
        for name, document in under(written, SUM):
            report = MetricReport.model_validate_json(document)
            slot = int(name.rsplit("/", 1)[1])
            self._open.setdefault((report.split, report.step), {})[slot] = report
            self._parts.put(name, report, report.model_dump_json)

    def add(self, slot: int, report: MetricReport) -> MetricTaken | None:
        """The mean, once this was the last slot's; a slot's second report of the same step is ignored."""
        step = (report.split, report.step)
        reports = self._open.setdefault(step, {})
        if slot not in reports:
            reports[slot] = report
            if len(reports) < self._slots:
                self._parts.put(_part(step, slot), report, report.model_dump_json)
        if len(reports) < self._slots:
            if len(self._open) > MOST_OPEN:
                self._close(next(iter(self._open)))
            return None
        self._close(step)
        return _mean(report, [reports[each] for each in sorted(reports)])

    def clear(self) -> None:
        """The job begins again."""
        for step in list(self._open):
            self._close(step)

    def _close(self, step: _Step) -> None:
        for slot in self._open.pop(step):
            self._parts.drop(_part(step, slot))


def _part(step: _Step, slot: int) -> str:
    return f"{SUM}{step[0]}/{step[1]}/{slot}"


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
