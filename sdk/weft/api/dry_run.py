"""What a job would be: the answer to `POST /v1/jobs?dry_run=true`, 200, which stores nothing.

It checks all that a submission does and is refused alike: 422 `job-refused` or `invalid-request`, with pointers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field, computed_field

from weft.api.base import Model
from weft.api.earlier import Renamed
from weft.api.job import Recompute
from weft.api.store import KeySpec


class StepMemory(Model):
    """Bytes of one run of a program on a worker, what kernels take for themselves left out, and its operations."""

    given_bytes: int
    """Inputs, constants and what is fetched."""
    intermediate_bytes: int
    """All that kernels make, as if each value had memory of its own."""
    live_bytes: int
    """The most of it that is held at one time, what is sent left out."""
    arena_bytes: int
    """The memory that these values share, as it is laid out."""
    kept_bytes: int
    """What is sent and told, held until the step's end."""
    unknown: int = 0
    """Values whose size only a step's values decide; they are in none of these numbers."""
    operations: int
    """On elements, counted."""

    @property
    def peak_bytes(self) -> int:
        """Of the whole run."""
        return self.given_bytes + self.arena_bytes + self.kept_bytes


class Passes(StrEnum):
    """How much is told of the converter's passes: a line or two each, or every node that came and went too."""

    SHORT = "short"
    FULL = "full"


class WorkerMemory(Model):
    """Bytes on the worker with the largest part of a batch; what kernels take besides is not in it."""

    parameter_bytes: int
    """Dense parameters that a step fetches whole; they are in the peaks too. Of a table only a batch's rows are."""
    state_bytes: int
    """The optimizer's state of dense parameters, where workers update, or there are no shards; else 0."""
    train_peak_bytes: int
    """A training step: what is given to it and fetched, the arena of its values, the gradients that it sends."""
    evaluate_peak_bytes: int | None
    """The same of an evaluation batch; None where there is no evaluation."""
    train: StepMemory | None = None
    """The training step in parts."""
    recompute: dict[Recompute, StepMemory] = Field(default_factory=dict)
    """The training step as it would be under each choice of the job's `recompute`."""


class StoreMemory(Model):
    """Bytes over all shards; without any they are the worker's."""

    parameter_bytes: int
    """Dense keys, merged gradients that workers fetch included."""
    state_bytes: int
    table_bytes: int
    """Tables as if every row were touched: the worst case. A row that no step reads or updates takes nothing."""
    table_state_bytes: int
    """The same worst case."""
    previous_bytes: int = 0
    """Dense keys as they were before the last step, where another worker can take a slot over."""
    largest_shard_bytes: int
    """At most, of all five: an even share and the largest piece that is not cut. 0 without shards."""


class StepTraffic(Model):
    """Bytes of payload of one training step over all workers; headers come on top. Without shards nothing travels."""

    fetched_bytes: int
    """Dense keys, whole."""
    sent_bytes: int
    fetched_row_bytes: int
    """Upper bound: as if all ids of a batch were distinct; with 8 bytes for each id."""
    sent_row_bytes: int
    """The same upper bound."""


class SnapshotCost(Model):
    """What a snapshot of the job takes. While it runs two are kept, and one once it has ended."""

    nbytes: int
    """Values, the optimizer's state, averages; tables as if every row were touched."""
    files: int
    """Processes that write at the same time, a file each: the shards, or the one worker."""
    every_s: float | None
    location: str | None
    """The folder or URL below which they are kept."""
    lacking: str | None
    """Why the job has none, so it begins anew after a loss and cannot be resumed; None where it has some."""


class DryRun(Renamed):
    """A checked job that was not submitted."""

    EARLIER: ClassVar[Mapping[str, str]] = {"steps_per_pass": "steps_per_epoch", "rule": "optimizer"}

    name: str
    workers: int
    shards: int
    steps: int
    steps_per_epoch: int
    keys: list[KeySpec]
    """Keys of the store in the order of the parameters."""
    slices: int
    optimizer: str | dict[str, Any]
    """As shards know it: a built-in one's name, or a document."""
    hyper: dict[str, float | dict[str, Any]]
    given: list[str] = Field(default_factory=list)
    """Parameters that begin with the values of `init_from`."""
    lacking: str | None = None
    """Which parameters have no first value and what to do: without any, a submission is refused. None for none."""
    worker_memory: WorkerMemory
    store_memory: StoreMemory
    step_traffic: StepTraffic
    beginning: str | None = None
    """What it starts with where that is another job's, or an upload of a part, and what of that it leaves."""
    snapshot: SnapshotCost | None = None
    waits_for: str | None
    """What the job would wait for if it were submitted now; None where it would start at once."""
    programs: dict[str, Any]
    """As `GET /v1/jobs/{id}/programs` gives them."""
    text: str
    """The programs for people."""
    passes: str = ""
    """What each pass of the converter does, for people, where that was asked for."""

    @computed_field  # type: ignore[prop-decorator]  # as pydantic has it
    @property
    def steps_per_pass(self) -> int:
        """The earlier name of `steps_per_epoch`."""
        return self.steps_per_epoch

    @computed_field  # type: ignore[prop-decorator]  # as pydantic has it
    @property
    def rule(self) -> str | dict[str, Any]:
        """The earlier name of `optimizer`."""
        return self.optimizer

    def __repr__(self) -> str:
        """Without the programs, which are long."""
        on = f"{self.steps} steps, workers={self.workers}, shards={self.shards}"
        store, step = self.store_memory, self.worker_memory.train_peak_bytes
        kept = store.parameter_bytes + store.state_bytes + store.previous_bytes
        tables = store.table_bytes + store.table_state_bytes
        memory = f"a worker's step takes {step:,} bytes, parameters and state {kept:,}"
        memory += f", tables up to {tables:,}" if tables else ""
        return f"<DryRun {self.name}: {on}; {memory}; {self.lacking or self.waits_for or 'it would start at once'}>"

    __str__ = __repr__
