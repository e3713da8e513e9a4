"""What the slots agree on of a step before it is applied, and the loss scale that follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weft_kvstore.description.records import LEAST_SCALE, MOST_SCALE, LossScaling
from weft_kvstore.snapshot_files import Snapshot

CLIP_EPSILON: Final = 1e-6
"""Added to the norm that a clipped gradient is divided by, as PyTorch's `clip_grad_norm_` does."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A committed step: the norm of its merged gradient, and whether all of that was finite. The loss was scaled by
    `loss_scale`, since which `good` steps in a row were finite; 1 where a job has no loss scaling."""

    step: int
    norm: float
    finite: bool
    loss_scale: float
    good: int = 0

    @property
    def scale(self) -> LossScale:
        """That of this step."""
        return LossScale(self.loss_scale, self.good)


@dataclass(frozen=True, slots=True)
class LossScale:
    """By which a step's loss is multiplied; `good` steps in a row were finite since it last changed."""

    scale: float
    good: int = 0

    def after(self, *, finite: bool, scaling: LossScaling) -> LossScale:
        """The next step's: half after a step that was not finite, twice after `growth_interval` that were."""
        if not finite:
            return LossScale(max(self.scale / 2, LEAST_SCALE))
        if self.good + 1 < scaling.growth_interval:
            return LossScale(self.scale, self.good + 1)
        return LossScale(min(self.scale * 2, MOST_SCALE))


def loss_scale_of(snapshot: Snapshot) -> LossScale | None:
    """That of the first step after a snapshot, where there is one."""
    return None if snapshot.loss_scale is None else LossScale(snapshot.loss_scale, snapshot.finite_steps)


def clip_factor(norm: float, clip_norm: float) -> float:
    """By which the gradient is multiplied so that its norm is at most `clip_norm`; NaN where the norm is."""
    factor = clip_norm / (norm + CLIP_EPSILON)
    return factor if not factor >= 1.0 else 1.0
