"""How a job ends: by its evaluations, by a loss that is not finite, because somebody stops it, or after its last step;
and which step's values are its result. Pure.

A job that is to end early goes on to its next snapshot, or back to the one before its best evaluation. It is placed
once more from there with fewer steps, so that its result has the bits of a job that was asked for so many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.api.event import MetricTaken
from weft.api.job import KeepBest, StopWhen
from weft_server.control.clock import Timestamp
from weft_server.control.memory import RunState

SHOWN = 3
"""Metrics that the reason of a job names."""


class Ending:
    """What is known of the end of one run that has not come to it. It is remembered as `stopping`, `is_asked_to_stop`,
    `end`, `evaluated`, `not_finite` and `ran_s`."""

    def __init__(self, state: RunState, now: Timestamp) -> None:
        self._state = state
        self._memory = state.memory
        self._when: KeepBest | None = state.plan.stop_when or state.plan.keep_best
        self._counted = now.seconds
        """When `ran_s` was counted last."""
        self.diverged: str | None = None
        """That a loss was not finite which has to be."""
        self.warning: str | None = None
        """Which metrics became so in what was taken last."""

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the earliest of equals, where the job asks for that."""
        return None if self._when is None else best_of(self._when, self._memory.evaluated)

    @property
    def best_again(self) -> int | None:
        """The same, where the job can be trained up to there again."""
        best = self.best
        return best if best is not None and self._memory.can_go_on(self._memory.up_to(best)) else None

    @property
    def better_than_the_last(self) -> int | None:
        """The same at the job's last step, where that has other values than the best."""
        best = self.best_again
        is_better = best is not None and self._memory.end is None and best < self._state.plan.steps
        return best if is_better else None

    @property
    def ends_by_itself(self) -> bool:
        """Whether the job is to end early by its evaluations, and where is not decided yet."""
        memory = self._memory
        return memory.stopping is not None and not memory.is_asked_to_stop and memory.end is None

    @property
    def why(self) -> str | None:
        """Why a job that was stopped has ended."""
        return None if self._memory.end is None else f"stopped at step {self._memory.end}: {self._memory.stopping}"

    def start(self, now: Timestamp) -> None:
        """The job runs for the first time: seconds count from here."""
        self._counted = now.seconds

    def begin_anew(self) -> None:
        """The job goes on from a snapshot: what was found after it is found again."""
        memory = self._memory
        memory.not_finite = {name: at for name, at in memory.not_finite.items() if at <= memory.first_step}

    def take(self, taken: MetricTaken, is_new: bool, now: Timestamp) -> bool:
        """Metrics of a step, `is_new` if they were not told before. Whether the job is to stop from now on."""
        memory, values = self._memory, {f"{taken.split}/{name}": value for name, value in taken.values.items()}
        before, memory.not_finite = memory.not_finite, wrong_since(memory.not_finite, taken)
        self.warning = None
        if not is_new:
            return False
        self._look_at_loss(taken)
        new = {name: step for name, step in memory.not_finite.items() if name not in before}
        self.warning = None if self.diverged else told_not_finite(values, new, taken.bad_data)
        if taken.split == "train":
            return False
        if self._when is not None and memory.stopping is None:  # How many more are told depends on chance.
            memory.ran_s, self._counted = memory.ran_s + now.seconds - self._counted, now.seconds
            memory.evaluated, why = evaluated(
                self._when, memory.evaluated, taken.step, taken.values, passed_s=memory.ran_s
            )
            memory.stopping = why if taken.step < self._state.plan.steps else None
            return memory.stopping is not None
        return False

    def _look_at_loss(self, taken: MetricTaken) -> None:
        loss, commit = taken.values.get("loss", 0.0), self._state.plan.commit
        if self.diverged is not None or self._state.plan.on_nan != "fail" or math.isfinite(loss):
            return
        if taken.split == "train":
            is_skipped = commit is not None and commit.loss_scaling is not None
            since = self._memory.not_finite.get("train/loss", taken.step)
            self.diverged = None if is_skipped else diverged(loss, since, taken.bad_data)
        elif taken.bad_data:
            where = f"the loss of the evaluation after step {taken.step} is {loss}"
            self.diverged = f"{where}, and {taken.bad_data} is not finite: correct the data"


def best_of(when: KeepBest, known: Mapping[int, float]) -> int | None:
    """The step of the best evaluation, the earliest of equals; None where none is finite."""
    found = [step for step in sorted(known) if math.isfinite(known[step])]
    return min(found, key=lambda step: _cost(when, known[step]), default=None)


def evaluated(
    when: KeepBest, known: Mapping[int, float], step: int, metrics: Mapping[str, float], *, passed_s: float
) -> tuple[dict[int, float], str | None]:
    """(evaluations that matter from now on, why the job is to stop) after one at `step`, `passed_s` after the job's
    start. `known` are those before it."""
    value = metrics.get(when.metric, math.nan)
    all_known = {**known, step: value}
    best = best_of(when, all_known)
    patience = when.patience if isinstance(when, StopWhen) else None
    newest = sorted(all_known)[-((patience or 0) + 8) :]
    kept = {each: all_known[each] for each in all_known if each in newest or each == best}
    since = sum(1 for each in all_known if best is None or each > best)
    why = None
    if not isinstance(when, StopWhen):
        pass
    elif when.reaches is not None and _cost(when, value) <= _cost(when, when.reaches):
        why = f"{when.metric} is {value:.6g}, which reaches {when.reaches:g}"
    elif patience is not None and best is not None and since >= patience:
        why = f"{when.metric} has not improved since step {best}, in {since} evaluations"
    elif when.after_s is not None and passed_s >= when.after_s:
        why = f"{when.after_s:g} s have passed"
    return kept, why


def _cost(when: KeepBest, value: float) -> float:
    return value if when.mode == "min" else -value


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
