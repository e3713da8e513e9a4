"""The loss scale of each step, as a worker follows it: what slots agreed on of the steps before decides it. Pure."""

from __future__ import annotations

from weft_kvstore.description.records import LossScaling
from weft_kvstore.store import LossScale, StepOutcome
from weft_worker.errors import WorkerError


class StepLossScale:
    """`scale` is that of the first step whose outcome has not been told. Told in the order of steps, by one thread at a
    time: the work that ends a step."""

    def __init__(self, scaling: LossScaling | None, first: LossScale | None = None) -> None:
        """`first`: that of the first step, where it is not the first of the job."""
        self._scaling = scaling
        self._now = first or LossScale(1.0 if scaling is None else scaling.initial)

    def go_on_after(self, outcome: StepOutcome) -> None:
        """The first step whose outcome will be told is the one after this one's."""
        if self._scaling is not None:
            self._now = outcome.scale.after(finite=outcome.finite, scaling=self._scaling)

    @property
    def is_fixed(self) -> bool:
        """Whether no step changes it."""
        return self._scaling is None

    @property
    def scale(self) -> float:
        return self._now.scale

    def follow(self, outcome: StepOutcome) -> str | None:
        """A step has ended. What people are to hear of it, if anything. Raises WorkerError where the shards have
        divided by another scale: gradients would be wrong by a factor."""
        if self._scaling is None:
            return None
        if outcome.loss_scale != self.scale:
            message = f"step {outcome.step + 1}: the shards divided by the loss scale {outcome.loss_scale}"
            raise WorkerError(f"{message}, this worker multiplied by {self.scale}")
        self._now = self._now.after(finite=outcome.finite, scaling=self._scaling)
        if outcome.finite:
            return None
        return f"step {outcome.step + 1} was skipped: its gradient is not finite; the loss scale is {self.scale:g} now"
