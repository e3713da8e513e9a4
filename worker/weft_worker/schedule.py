"""A run's schedule: what each step reads, and what follows it. The same on every slot but for the slot's own part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from weft.api.agent import report_interval
from weft_data.cut import part
from weft_data.schedule import BatchPlan
from weft_data.source import Rows


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledStep:
    """One step. `rows` are this slot's, at places `first_sample` and on of the global batch of `samples`."""

    step: int
    samples: int
    first_sample: int
    rows: Rows
    share: float
    """By which the loss is scaled: (samples of this slot) / (samples of the step), so that the sum over the slots is
    the gradient of the whole batch; 1 where no slot's gradient is summed with another's."""
    reports: bool
    """Whether metrics are reported once it is finished."""
    evaluates: bool
    """Whether an evaluation follows it."""


def parts_of(step: ScheduledStep, most: int) -> tuple[ScheduledStep, ...]:
    """The step cut into `most` parts in order, or as many as it has samples: each with its rows, the place of the first
    in the global batch and its share of the loss."""
    count = min(most, len(step.rows))
    if count == 1:
        return (step,)
    cuts = (part(len(step.rows), number, count) for number in range(count))
    return tuple(
        replace(
            step,
            first_sample=step.first_sample + start,
            rows=step.rows[start:stop],
            share=step.share * ((stop - start) / len(step.rows)),
        )
        for start, stop in cuts
    )


class Schedule:
    """The steps of a run for `slot` of `slots`. `evaluation` is (start, stop) of the rows held out.

    `accumulate`: the parts that a slot's step is computed in, one after the other. `summed`: whether a step's gradients
    are summed over the slots, as in sync; in async each slot's stands alone.
    """

    def __init__(
        self,
        batches: BatchPlan,
        *,
        steps: int,
        slot: int,
        slots: int,
        evaluation: tuple[int, int] | None,
        evaluate_every: int | None,
        summed: bool = True,
        accumulate: int = 1,
    ) -> None:
        self.batches = batches
        self.steps = steps
        self.slot = slot
        self.slots = slots
        self._summed = summed
        self.accumulate = accumulate
        self._evaluation = evaluation
        self._evaluate_every = evaluate_every or batches.steps_per_pass
        self._report_every = report_interval(steps)

    def at(self, step: int) -> ScheduledStep:
        """What the step from 0 is for this slot."""
        _, rows = self.batches.at(step)
        start, stop = part(len(rows), self.slot, self.slots)
        finished = step + 1
        last = finished == self.steps
        return ScheduledStep(
            step=step,
            samples=len(rows),
            first_sample=start,
            rows=rows[start:stop],
            share=(stop - start) / len(rows) if self._summed else 1.0,
            reports=last or finished % self._report_every == 0 or finished % self.batches.steps_per_pass == 0,
            evaluates=self._evaluation is not None and (last or finished % self._evaluate_every == 0),
        )

    def training_sizes(self) -> list[int]:
        """The numbers of samples that this slot computes at once in training, each once, zero left out."""
        globally = {self.batches.samples(step) for step in (0, self.batches.steps_per_pass - 1) if step < self.steps}
        own = {stop - start for start, stop in (part(size, self.slot, self.slots) for size in globally)} - {0}
        cuts = ((size, min(self.accumulate, size)) for size in own)
        return sorted(
            {-(-size // count) for size, count in cuts} | {size // min(self.accumulate, size) for size in own}
        )

    def evaluation_batches(self) -> Iterator[tuple[int, Rows]]:
        """This slot's evaluation rows, in the order of the source, in batches of the job's size.

        Each comes with the place of its first row among the evaluation rows of all slots.
        """
        if self._evaluation is None:
            return
        begin, end = self._evaluation
        start, stop = part(end - begin, self.slot, self.slots)
        for first in range(start, stop, self.batches.batch):
            yield first, np.arange(begin + first, begin + min(first + self.batches.batch, stop), dtype=np.int64)

    def evaluation_sizes(self) -> list[int]:
        """The numbers of samples that `evaluation_batches` has, each once."""
        return sorted({len(rows) for _, rows in self.evaluation_batches()})
