"""What a store answers: outcomes of steps, pulled values, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import LEAST_SCALE, MOST_SCALE, LossScaling
from weft_kvstore.snapshot_files import Snapshot

# --- What the slots agree on of a step before it is applied, and the loss scale that follows from it ------------------


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


# --- Pulled values, and statistics -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pulled:
    """Values of several keys, in the order in which they were asked for, and what they are at: of the slices of key i,
    `lowest[i]` is the lowest version and `highest[i]` the highest, (keys) int64."""

    values: list[Array]
    lowest: Array
    highest: Array


def joined_pulls(pulls: Sequence[Pulled]) -> Pulled:
    """What several pulls gave, as if it were one."""
    values = [value for one in pulls for value in one.values]
    lowest = np.concatenate([one.lowest for one in pulls])
    return Pulled(values, lowest, np.concatenate([one.highest for one in pulls]))


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """One link of a client. `bytes_*` passed the socket, headers and payloads; `payload_*` are payloads alone, through
    the socket or shared memory; `shared_bytes_*` those through shared memory, which `same_host` says is in use now.

    `queued_*` wait to be sent; `in_flight_bytes` were sent and are not acknowledged. `rate_bytes_per_s` is measured on
    networks alone. `connections` counts Hellos; `welcomed`: the shard has accepted the connection. `trouble`: why it
    has not, once its silence is over or it has answered so; `taken`: another process has the slot; `refused`: the shard
    has refused this client for good.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    credit_bytes: int = 0
    rate_bytes_per_s: float | None = None
    connections: int = 0
    welcomed: bool = False
    trouble: str | None = None
    refused: bool = False
    taken: bool = False
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0
    same_host: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Sums over the client's links, and each link by shard number. `operations` are futures that have not ended.
    `bytes_*` passed the sockets, `shared_bytes_*` shared memory instead.

    `rows_pushed` and `rows_pulled` count rows of tables in the calls begun: padding and repetitions left out.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    operations: int = 0
    links: tuple[LinkStatistics, ...] = ()
    rows_pushed: int = 0
    rows_pulled: int = 0
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0
