"""What the checks make of a submitted job: all that is needed to run it, decided before anything starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from weft.api.agent import Snapshot
from weft.api.base import Model, Name
from weft.api.compression import StoreCompressionSpec
from weft.api.data import DataSpec
from weft.api.earlier import Renamed
from weft.api.job import KeepBest, Merge, Mode, ParameterInfo, StopWhen, UpdateBy
from weft.api.store import AverageSpec, CommitSpec, InitializerSpec, KeySpec, StoreSpec
from weft_graph.ir import GIVEN
from weft_graph.types import DType


class Given(Model):
    """Values of some parameters, in a file of the job's."""

    names: list[str]
    file: str


class JobPlan(Renamed):
    """A checked job. It is kept as JSON, so that a pending job outlives the server's process."""

    EARLIER: ClassVar[Mapping[str, str]] = {"steps_per_pass": "steps_per_epoch"}

    name: Name
    programs: dict[str, Any]
    """JSON form of `weft_graph.program.Programs`."""
    data: DataSpec
    """With `train` filled in."""
    seed: int
    steps: int
    """Steps of the whole run."""
    steps_per_epoch: int
    evaluate_every: int | None
    workers: int
    shards: int
    merge: Merge
    slice_bytes: int
    keys: list[KeySpec]
    parameters: list[ParameterInfo]
    rule: str | dict[str, Any]
    hyper: dict[str, float | dict[str, Any]]
    mode: Mode = Mode.SYNC
    update: UpdateBy = UpdateBy.SHARDS
    keep_state: bool = False
    accumulate: int = 1
    """Parts in which a worker computes its samples of a step."""
    average: AverageSpec | None = None
    evaluate_average: bool = False
    compression: StoreCompressionSpec | None = None
    commit: CommitSpec | None = None
    """What all workers agree on at each step before it is applied."""
    dims: dict[str, int] = Field(default_factory=dict)
    """Sizes of the symbolic dimensions that the data's rows fill; not of the batch."""
    state_arrays: int = 0
    """Arrays of a parameter's size that the rule keeps beside each that it updates."""
    given: Given | None = None
    """First values that the job was submitted with."""
    max_restarts: int = 0
    snapshot_every_s: float | None = None
    stop_when: StopWhen | None = None
    keep_best: KeepBest | None = None
    on_nan: Literal["fail", "go_on", "skip"] = "go_on"
    content: str = ""
    """What the data's columns held when the job was submitted; empty where an earlier release did not look."""
    resume: Snapshot | None = None
    """Another job's, that this one goes on from."""
    beginning: str | None = None
    """What it begins with, and what it leaves of that: see `weft.api.job.Job`."""

    @property
    def first_step(self) -> int:
        """The first that the job does."""
        return 0 if self.resume is None else self.resume.step

    @property
    def hands_slots_over(self) -> bool:
        """Whether another process can go on in the slot of a worker that is lost: all that a step needs is with the
        shards then. Where it cannot, all of the job goes on from a snapshot."""
        return (
            self.max_restarts > 0
            and self.shards > 0
            and self.mode is Mode.SYNC
            and self.update is UpdateBy.SHARDS
            and self.compression is None
            and not any(key.rows for key in self.keys)
        )

    def no_snapshots(self, location: str | None, *, asked_for: bool = False) -> str | None:
        """Why the job has no snapshots that it could go on from exactly, kept at that location; None where it has. A
        job that takes none by itself takes one that is `asked_for`."""
        if self.mode is not Mode.SYNC:
            return f"its mode is {self.mode.value}"
        if location is None:
            return "the server keeps none"
        return "snapshot_every_s is null" if self.snapshot_every_s is None and not asked_for else None

    @property
    def kept_arrays(self) -> int:
        """Arrays that go beside each trained parameter in documents: the optimizer's state, or the average alone."""
        return self.state_arrays if self.keep_state else int(self.average is not None)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all keys' values: of parameters, and of merged gradients that workers fetch."""
        return sum(map(nbytes, self.keys))

    @property
    def slices(self) -> int:
        """Slices of all keys, over all shards."""
        return sum(key_slices(key, self.slice_bytes) for key in self.keys)

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        assert self.data.train is not None
        return self.data.train.stop - self.data.train.start

    def samples_until(self, step: int) -> int:
        """Samples in the first `step` steps of the run: the last batch of an epoch is as short as what is left."""
        epochs, within = divmod(step, self.steps_per_epoch)
        return epochs * self.rows + min(within * self.data.batch_size, self.rows)

    def epochs_begun(self, step: int) -> int:
        """Epochs begun once `step` steps are finished."""
        return -(-step // self.steps_per_epoch)

    def store(
        self, job: str, term: int, endpoints: list[str], given: Sequence[str] = (), curve_keys: Sequence[str] = ()
    ) -> StoreSpec:
        """The store's description, the same for every process of the job.

        `endpoints` and public `curve_keys` are by shard number; the first values of the keys in `given` are set by the
        keeper.
        """
        begun = [_given(key) if key.key in given else key for key in self.keys]
        return StoreSpec(
            job=job,
            term=term,
            seed=self.seed,
            slots=self.workers,
            shards=endpoints,
            keys=begun,
            rule=self.rule,
            hyper=self.hyper,
            slice_bytes=self.slice_bytes,
            merge=self.merge.value,
            mode=self.mode.value,
            commit=self.commit,
            average=self.average,
            compression=self.compression,
            curve_keys=list(curve_keys),
        )


def _given(key: KeySpec) -> KeySpec:
    return key.model_copy(update={"initializer": InitializerSpec(op_type=GIVEN, attributes={})})


def key_slices(key: KeySpec, slice_bytes: int) -> int:
    """Slices of a key: a table is not cut, and neither is a key that its rule needs whole."""
    return 1 if key.rows or key.whole else -(-nbytes(key) // slice_bytes)


def nbytes(parameter: ParameterInfo | KeySpec) -> int:
    """Bytes of a parameter's or key's value."""
    return math.prod(parameter.shape) * DType(parameter.dtype).itemsize
