"""What a user submits, and what the server tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    computed_field,
    field_validator,
    model_validator,
)

from weft.api.base import Count, Identifier, Measured, Model, Name, Positive, not_both, one_of, some_of
from weft.api.compression import StoreCompressionSpec
from weft.api.data import DataSpec
from weft.api.earlier import Renamed
from weft.api.lifecycle import JobState
from weft.api.optimizer import SGD, OptimizerSpec
from weft.api.store import AverageSpec, LossScalingSpec
from weft.api.token import DEFAULT_PROJECT
from weft.api.trace import TraceWindow
from weft_graph.passes.places import PLACE_PATTERN

GroupName = Annotated[str, Field(min_length=1, max_length=256)]
PlaceName = Annotated[str, Field(pattern=PLACE_PATTERN)]


class Merge(StrEnum):
    """In which order a shard sums the slots' gradients of a step: by slot (bit-equal) or as they arrive."""

    SLOT = "slot"
    ARRIVAL = "arrival"


class Mode(StrEnum):
    """When a step applies: once every slot is in (sync), or each slot's part as it arrives (async)."""

    SYNC = "sync"
    ASYNC = "async"


class UpdateBy(StrEnum):
    """Who applies the optimizer to dense parameters. Tables and running statistics are always updated on the shards."""

    SHARDS = "shards"
    WORKERS = "workers"


class Recompute(StrEnum):
    """What a training step computes again instead of holding it from the forward to the backward part: nothing, what
    is cheap (normalizations, functions of elements, views, pools), or all from some checkpoints on."""

    OFF = "off"
    CHEAP = "cheap"
    SEGMENTS = "segments"


class Precision(StrEnum):
    """In what workers compute products (matrix products, convolutions, attention, recurrent layers) and what follows
    them element by element. Parameters, sums over many elements, losses and metrics stay float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Parallelism(Model):
    """On how many processes a job runs, and how its parameters are cut."""

    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    shards: Annotated[int, Field(ge=0, le=256)] = Field(default_factory=lambda given: int(given.get("workers", 1) > 1))
    """0: the one worker keeps the values in its own process, which sends no message. So where it is left out for one
    worker; for several it is 1 then."""
    merge: Merge = Merge.SLOT
    slice_bytes: Annotated[int, Field(ge=64, le=1 << 24, multiple_of=64)] = 128 * 1024
    """Part of a key's value that is merged, retried and pre-empted as one."""
    mode: Mode = Mode.SYNC
    update: UpdateBy = UpdateBy.SHARDS
    """With `workers`, shards hold merged gradients (`K/grad`), workers weights and the optimizer's state: sync only."""
    placement: Annotated[dict[GroupName, PlaceName], Field(max_length=256)] = Field(default_factory=dict)
    """The place of each group of the graph's nodes: a device of the worker (`cpu`, `cuda:0`), or a stage (`stage:1`,
    `stage:1/cuda:0`). Nodes without a group follow what they read. A worker computes on the one device of its
    settings, so all groups have one place today; without placement, groups mean nothing."""

    @field_validator("shards")
    @classmethod
    def _shared_by_several(cls, shards: int, info: ValidationInfo) -> int:
        workers = info.data.get("workers", 1)
        if shards == 0 and workers > 1:
            raise ValueError(f"{workers} workers share their parameters by shards: give at least 1")
        return shards


class RunLength(Renamed):
    """How long to train: `epochs`, passes over the training rows, or `steps`. Exactly one of them."""

    model_config = ConfigDict(json_schema_extra=one_of(epochs="integer", steps="integer"))

    EARLIER: ClassVar[Mapping[str, str]] = {"passes": "epochs"}

    epochs: Positive | None = None
    steps: Positive | None = None
    evaluate_every: Positive | None = None
    """Steps between two evaluations; after each epoch where left out. The end of the run is always evaluated."""

    @model_validator(mode="after")
    def _one_length(self) -> RunLength:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


class KeepBest(Model):
    """Which evaluation's values are a job's result: the best one's. At its end the job goes back to its newest snapshot
    before that, and trains up to there. Sync mode only."""

    metric: Name = "loss"
    """The job's, over its evaluation rows."""
    mode: Literal["min", "max"] = "min"
    """Whether small or large values of it are good."""


class StopWhen(KeepBest):
    """When a job ends before its last step. This is looked at after each evaluation, and the result is of the best
    one."""

    model_config = ConfigDict(json_schema_extra=some_of(patience="integer", reaches="number", after_s="number"))

    patience: Positive | None = None
    """Evaluations in a row without a better one."""
    reaches: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The metric is as good as this."""
    after_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """So many seconds have passed since the job's start."""

    @model_validator(mode="after")
    def _some_end(self) -> StopWhen:
        if self.patience is None and self.reaches is None and self.after_s is None:
            raise ValueError("give patience, reaches or after_s, or some of them")
        return self


class FromJob(Model):
    """First values from a job that has succeeded, or of one that runs as they are now."""

    job: Identifier


class FromUpload(Model):
    """First values from a safetensors document that was brought to `POST /v1/uploads`."""

    upload: Identifier


def _origin(value: object) -> str:
    is_upload = isinstance(value, FromUpload) or (isinstance(value, Mapping) and "upload" in value)
    return "an upload" if is_upload else "a job"


# The tags are what pydantic puts into an error's place; no field is called so.
Origin = Annotated[Annotated[FromJob, Tag("a job")] | Annotated[FromUpload, Tag("an upload")], Discriminator(_origin)]


class JobSpec(Renamed):
    """A job: graph, data, optimizer, parallelism, run length."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [not_both("init_from", "resume"), not_both("stop_when", "keep_best")]}
    )

    EARLIER: ClassVar[Mapping[str, str]] = {"rule": "optimizer", "average": "ema", "evaluate_average": "evaluate_ema"}

    name: Name = "job"
    graph: dict[str, Any]
    """The graph's JSON form; its schema is at /v1/schemas/graph."""
    loss: Annotated[str, Field(max_length=256)]
    """The graph output that is made small: a scalar, the mean over the batch."""
    metrics: Annotated[dict[Name, str], Field(max_length=256)] = Field(default_factory=dict)
    """Metric name -> graph output: scalars that are means over the batch; `loss` is always reported."""
    data: DataSpec
    optimizer: OptimizerSpec = Field(default_factory=SGD)
    run: RunLength
    parallelism: Parallelism = Field(default_factory=Parallelism)
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    init_from: Origin | None = None
    """Where parameters of the same name begin; those that it lacks begin as the graph says."""
    resume: Identifier | None = None
    """A job that has ended, from whose last snapshot this one goes on: with its values, the optimizer's state, at its
    step. Steps count from that job's first. Graph and optimizer have to be the same; other numbers of workers and
    shards, another length and another learning rate may be given."""
    recompute: Recompute = Recompute.OFF
    """`cheap` takes about a hundredth more operations, `segments` up to a third. Results are the same to the bit."""
    precision: Precision = Precision.FLOAT32
    """With `float16` the loss is scaled: see `loss_scale`."""
    allow_tf32: bool = False
    """Whether GPUs compute products of float32 in TF32: with its range and 11 bits of precision, and several times as
    fast on GPUs of compute capability 8.0 and higher. CPUs and older GPUs compute in float32."""
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most that the norm of a step's whole gradient may be; a longer one is shortened. Shards hold each step for it
    until all workers have sent it: one more round trip a step. Sync mode only."""
    loss_scale: LossScalingSpec | None = None
    """Settings of the loss scale; without them, a job in float16 has the usual ones and any other none."""
    accumulate: Annotated[int, Field(ge=1, le=4096)] = 1
    """Parts in which a worker computes its samples of a step, one after the other: gradients are summed before they are
    sent, so results are those of one part within rounding, and the memory of a step is that of a part. Running
    statistics become the mean over the parts."""
    ema: AverageSpec | None = None
    """Averages of the parameters, kept by the shards: one more array of each one's size. They go with the parameters as
    tensors `weft.state/weft.average/KEY`: how far the average is ahead of the parameter."""
    evaluate_ema: bool = False
    """Whether evaluations use the averages. Running statistics are as training left them."""
    compression: StoreCompressionSpec | None = None
    """What of the gradients and values travels in fewer bytes between workers and shards."""
    stop_when: StopWhen | None = None
    """When the job ends before its last step, with the values of its best evaluation."""
    keep_best: KeepBest | None = None
    """The result has the values of the best evaluation by this, unless the job is stopped."""
    on_nan: Literal["fail", "go_on", "skip"] = "fail"
    """What a loss that is not finite does to the job. With `skip`, a step whose gradient is not finite changes nothing,
    on any worker or shard: shards hold each step for it until all workers have sent it, as for `clip_norm`. A job whose
    loss is scaled skips such steps anyway."""
    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """How often the job may go on after one of its processes or agents was lost, from its newest snapshot or from the
    beginning. Its result is the same, to the bit in sync mode; 0: it fails."""
    snapshot_every_s: Annotated[float, Field(gt=0, le=1e6)] | None = 60.0
    """Seconds between two snapshots while the job runs, from which it goes on after a loss; None: it begins again with
    its first step. Jobs with tables, in async mode, with compression, or whose workers update take none."""
    keep_state: bool = False
    """Whether the optimizer's state is kept beside the parameters, as tensors `weft.state/NAME/KEY`."""
    trace: TraceWindow = TraceWindow()
    """The steps in which workers and shards note what they do, for `weft report` and `weft trace`."""

    @model_validator(mode="after")
    def _one_beginning(self) -> JobSpec:
        if self.resume is not None and self.init_from is not None:
            raise ValueError("give either init_from or resume: a job that goes on has its values")
        if self.stop_when is not None and self.keep_best is not None:
            raise ValueError("give either stop_when or keep_best: stop_when keeps the best by its own metric")
        return self


class Scale(Model):
    """Other numbers of workers and shards for a job that runs. What is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra=some_of(workers="integer", shards="integer"))

    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    shards: Annotated[int, Field(ge=0, le=256)] | None = None

    @model_validator(mode="after")
    def _some_number(self) -> Scale:
        if self.workers is None and self.shards is None:
            raise ValueError("give workers or shards, or both")
        return self

    def of(self, before: Parallelism) -> Parallelism:
        """The same in all else. A worker alone has no shards; several have as many as a new job of theirs."""
        same = before.model_dump(exclude={"shards"} if not before.shards else None)
        return Parallelism.model_validate({**same, **self.model_dump(exclude_none=True)})


class Traffic(Model):
    """Bytes between workers and shards since the job's start: through sockets, and through memory of one host."""

    sent_bytes: Count = 0
    received_bytes: Count = 0


class Progress(Renamed):
    """How far a job is. `step` counts finished steps, `epoch` the epochs that have begun."""

    EARLIER: ClassVar[Mapping[str, str]] = {"pass_number": "epoch"}

    step: int = 0
    steps: int
    epoch: int = 0

    @computed_field  # type: ignore[prop-decorator]  # as pydantic has it
    @property
    def pass_number(self) -> int:
        """The earlier name of `epoch`."""
        return self.epoch


class Job(Model):
    """A job as the server sees it now."""

    id: Identifier
    name: Name
    project: Name = DEFAULT_PROJECT
    """Of the token that it was submitted with."""
    state: JobState
    beginning: str | None = None
    """What it starts with where that is another job's, or an upload of a part, and what of that it leaves."""
    reason: str | None = None
    """Why it is in this state: what a pending job waits for, what a failed one died of."""
    progress: Progress
    metrics: dict[str, Measured] = Field(default_factory=dict)
    """The newest value of each metric, by `split/name`: `train/loss`, `evaluate/accuracy`."""
    traffic: Traffic = Field(default_factory=Traffic)
    workers: int
    shards: int
    devices: list[str] = Field(default_factory=list)
    """What its workers compute on, by slot: `cpu`, or a GPU's number and model; none before it is placed."""
    restarts: int = 0
    """How often it went on after a process or an agent of it was lost."""
    snapshot: Count | None = None
    """The step of the newest snapshot: where it goes on after a loss, or when it is resumed."""
    snapshot_bytes: Count = 0
    """What its snapshots take in their place."""
    file_bytes: Count = 0
    """What its result, values that it began with, and the like take on the server's disk."""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def kept_bytes(self) -> int:
        """What it takes altogether, until it is removed."""
        return self.snapshot_bytes + self.file_bytes


class JobPage(Model):
    """A page of jobs, newest first. `next` is the cursor of the following page."""

    jobs: list[Job]
    next: str | None = None


class ParameterInfo(Model):
    """A parameter of a job: what it is, not its values."""

    name: str
    dtype: str
    shape: list[int]
    trainable: bool


class ParameterList(Model):
    parameters: list[ParameterInfo]
