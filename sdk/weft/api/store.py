"""What a job's processes are told of its store; the kvstore room reads the same JSON into records of its own."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from weft.api.base import Below1, Model
from weft.api.compression import StoreCompressionSpec

GRADIENT_SUFFIX: Final = "/grad"


def gradient_key(key: str) -> str:
    """The key that has the merged gradient of `key`, where workers update."""
    return key + GRADIENT_SUFFIX


class InitializerSpec(Model):
    op_type: str
    attributes: dict[str, float]


class EvictionSpec(Model):
    """Rows of a growing table that go: those last pushed over `age` steps ago, those whose score is below `score`."""

    every: int
    age: int | None = None
    score: float | None = None
    decay: float = 0.999


class GrowthSpec(Model):
    """Rows come into being by any 64-bit id: by its use number `uses`, or by each use with a `probability`."""

    uses: int = 1
    probability: float = 1.0
    eviction: EvictionSpec | None = None


class KeySpec(Model):
    """A key of the job. `priority` 0 is the most urgent. `slots` are those that contribute to it, in order.

    `rows`: a table, pushed and pulled by rows. `whole`: never cut, for its rule is not pointwise. `multipliers` stretch
    the job's hyper-parameters for this key. A key that is updated by `gradient` holds the merged gradient of the last
    step, for workers that update themselves. A table with `growth` has no row at first; `rule` and `hyper` take the
    place of the job's for this table, `staleness` and `compression` for this key. `half`: clients' arrays are of this
    type, over a float32 key.
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
    staleness: int | None = None
    growth: GrowthSpec | None = None
    rule: str | dict[str, Any] | None = None
    hyper: dict[str, float | dict[str, Any]] | None = None
    sparse: Literal["lazy", "standard"] = "lazy"
    compression: StoreCompressionSpec | None = None
    half: Literal["float16", "bfloat16"] | None = None


class LossScalingSpec(Model):
    """The loss is multiplied by a power of two, so that small gradients of float16 are not 0, and merged gradients are
    divided by it. A step whose gradient is not finite is skipped and halves it; finite ones in a row double it."""

    initial: Annotated[float, Field(ge=2.0**-24, le=2.0**24, allow_inf_nan=False)] = 65536.0
    """The first scale: a power of two."""
    growth_interval: Annotated[int, Field(ge=1, lt=1 << 31)] = 2000
    """Finite steps in a row after which it doubles."""

    @field_validator("initial")
    @classmethod
    def _is_a_power_of_two(cls, initial: float) -> float:
        if math.frexp(initial)[0] != 0.5:
            raise ValueError("it should be a power of two, so that dividing by it changes no digit")
        return initial


class CommitSpec(Model):
    """Each step is held by the shards until all slots agree on its gradient's norm, and on whether it is finite."""

    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    loss_scaling: LossScalingSpec | None = None
    skip: bool = False
    """Whether a step whose gradient is not finite changes nothing, also where the loss is not scaled."""

    @property
    def skips(self) -> bool:
        """Whether such a step changes nothing."""
        return self.skip or self.loss_scaling is not None


class AverageSpec(Model):
    """Shards keep the average of each trained parameter over the steps beside it, of rows of a table with lazy updates
    over the steps that touch them. With `decay` it is the exponential mean, whose shares add up to 1 from the first
    step on (no bias towards the start); without, all steps count alike."""

    decay: Annotated[Below1, Field(gt=0)] | None = None
    start: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    """Steps that do not count: until then the average is the parameter itself."""


class StoreSpec(Model):
    """The one static description that every process of a store is given."""

    job: str
    term: int
    """The lease's term: frames of another one are refused."""
    seed: int
    slots: int
    shards: list[str]
    """ZeroMQ endpoints, by shard number; for the shards themselves empty ones: they are told before these are known."""
    keys: list[KeySpec]
    rule: str | dict[str, Any]
    """A built-in rule's name, or a user's rule as a document."""
    hyper: dict[str, float | dict[str, Any]]
    """Numbers, or schedules as documents."""
    slice_bytes: int
    merge: Literal["slot", "arrival"]
    mode: Literal["sync", "async", "stale"] = "sync"
    commit: CommitSpec | None = None
    average: AverageSpec | None = None
    staleness: int = 0
    compression: StoreCompressionSpec | None = None
    curve_keys: list[str] = Field(default_factory=list)
    """The shards' public CURVE keys, by shard number; none: links are plain."""
