"""What a job's processes are told of its store; the kvstore room reads the same JSON into records of its own."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from weft.api.base import Model

GRADIENT_SUFFIX: Final = "/grad"


def gradient_key(key: str) -> str:
    """The key that has the merged gradient of `key`, where workers update."""
    return key + GRADIENT_SUFFIX


class InitializerSpec(Model):
    op_type: str
    attributes: dict[str, float]


class KeySpec(Model):
    """A key of the job. `priority` 0 is the most urgent. `slots` are those that contribute to it, in order.

    `rows`: a table, pushed and pulled by rows. `whole`: never cut, for its rule is not pointwise. `multipliers` stretch
    the job's hyper-parameters for this key. A key that is updated by `gradient` holds the merged gradient of the last
    step, for workers that update themselves.
    """

    key: str
    dtype: str
    shape: list[int]
    initializer: InitializerSpec
    update: Literal["rule", "mean", "gradient"]
    priority: int
    slots: list[int]
    rows: bool = False
    whole: bool = False
    multipliers: dict[str, float] = Field(default_factory=dict)


class LossScalingSpec(Model):
    """The loss is multiplied by a power of two, and merged gradients are divided by it; see `weft.api.job.LossScale`."""

    initial: float
    growth_interval: int


class CommitSpec(Model):
    """Each step is held by the shards until all slots agree on its gradient's norm, and on whether it is finite."""

    clip_norm: float | None = None
    loss_scaling: LossScalingSpec | None = None


class StoreSpec(Model):
    """The one static description that every process of a store is given."""

    job: str
    term: int
    """The lease's term: frames of another one are refused."""
    seed: int
    slots: int
    shards: list[str]
    """ZeroMQ endpoints, by shard number. A shard that is told before all are known gets the same list."""
    keys: list[KeySpec]
    rule: str | dict[str, Any]
    """A built-in rule's name, or a user's rule as a document."""
    hyper: dict[str, float | dict[str, Any]]
    """Numbers, or schedules as documents."""
    slice_bytes: int
    merge: Literal["slot", "arrival"]
    mode: Literal["sync", "async"] = "sync"
    commit: CommitSpec | None = None
