"""What a job's processes are told of its store; the kvstore room reads the same JSON into records of its own."""

from __future__ import annotations

from typing import Literal

from weft.api.base import Model


class InitializerSpec(Model):
    op_type: str
    attributes: dict[str, float]


class KeySpec(Model):
    """A key of the job. `priority` 0 is the most urgent. `slots` are those that contribute to it, in order."""

    key: str
    dtype: str
    shape: list[int]
    initializer: InitializerSpec
    update: Literal["rule", "mean"]
    priority: int
    slots: list[int]


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
    rule: str
    hyper: dict[str, float]
    slice_bytes: int
    merge: Literal["slot", "arrival"]
