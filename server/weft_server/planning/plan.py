"""A job's plan: all that is needed to run it, decided before anything starts. Pure; checks nothing."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from weft.api.agent import Snapshot
from weft.api.base import Model, Name
from weft.api.compression import StoreCompressionSpec
from weft.api.data import DataSpec, Rows
from weft.api.earlier import Renamed
from weft.api.job import JobSpec, KeepBest, Merge, Mode, Parallelism, ParameterInfo, StopWhen, UpdateBy
from weft.api.store import AverageSpec, CommitSpec, InitializerSpec, KeySpec, StoreSpec, gradient_key
from weft.api.trace import TraceWindow
from weft_data.source import Description
from weft_graph.ir import GIVEN, Input
from weft_graph.program import KeyPlan, Programs, Update
from weft_graph.program_json import programs_to_json
from weft_graph.types import DType
from weft_graph.weft_domain import SEND, SEND_ROWS
from weft_server.planning.options import OF_COMMIT, commit_of
from weft_server.planning.rule_planning import RulePlan


class Given(Model):
    """Values of some parameters, in a file of the job's."""

    names: list[str]
    file: str


class JobPlan(Renamed):
    """A checked job. It is kept as JSON, so that a pending job outlives the server's process."""

    EARLIER: ClassVar[Mapping[str, str]] = {"steps_per_pass": "steps_per_epoch"}

    name: Name
    programs_json: Annotated[str, Field(json_schema_extra={"contentMediaType": "application/json"})]
    """JSON form of `weft_graph.program.Programs`, which workers are given: as text, since it may be large, and the
    server only passes it on."""
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
    allow_tf32: bool = False
    trace: TraceWindow = TraceWindow(steps=0)
    accumulate: int = 1
    """Parts in which a worker computes its samples of a step."""
    average: AverageSpec | None = None
    evaluate_average: bool = False
    compression: StoreCompressionSpec | None = None
    commit: CommitSpec | None = None
    """What all workers agree on at each step before it is applied."""
    metric_names: list[str] | None = None
    """Of all that its workers may report; None where an earlier release did not keep them."""
    dims: dict[str, int] = Field(default_factory=dict)
    """Sizes of the symbolic dimensions that the data's rows fill; not of the batch."""
    state_arrays: int = 0
    """Arrays of a parameter's size that the rule keeps beside each that it updates."""
    worker_bytes: int = 0
    """Memory that each worker's process needs at least."""
    shard_bytes: int = 0
    """The same of each shard's, without the rows of tables."""
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

    @model_validator(mode="before")
    @classmethod
    def _with_programs_as_text(cls, given: Any) -> Any:
        """The releases before kept them as an object."""
        if not isinstance(given, Mapping) or not isinstance(given.get("programs"), Mapping):
            return given
        return {"programs_json": _text(given["programs"]), **{k: v for k, v in given.items() if k != "programs"}}

    @property
    def programs(self) -> dict[str, Any]:
        """The same, read."""
        read: dict[str, Any] = json.loads(self.programs_json)
        return read

    @cached_property
    def programs_sha256(self) -> str:
        """What workers ask for it by."""
        return hashlib.sha256(self.programs_json.encode()).hexdigest()

    @property
    def first_step(self) -> int:
        """The first that the job does."""
        return 0 if self.resume is None else self.resume.step

    @property
    def traced(self) -> TraceWindow:
        """The steps that are traced, counted over all jobs that this one goes on from. The last step is none of them:
        shards tell of the traced ones as the next one comes."""
        first = self.first_step + self.trace.first_step
        return TraceWindow(first_step=first, steps=max(min(self.trace.steps, self.steps - first), 0))

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

    def lacking(self, given: Collection[str]) -> str | None:
        """Which parameters would have no first value with those that are `given`, and what to do; None for none."""
        names = [key.key for key in self.keys if key.initializer.op_type == GIVEN and key.key not in given]
        if not names:
            return None
        more = (
            f"and {len(names) - 1} more have no first value of their own"
            if names[1:]
            else "has no first value of its own"
        )
        return (
            f"parameter {names[0]!r} {more}, and a job's document holds none: submit it with "
            "--init-from FILE.safetensors (or a job's id), in Python with client.submit_spec(spec, "
            "values=model.values), over HTTP with an init_from of POST /v1/uploads"
        )

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


def plan_of(spec: JobSpec, rule: RulePlan, programs: Programs, source: Description) -> JobPlan:
    """The plan; training rows that are left out are all of the source's."""
    train = spec.data.train or Rows(start=0, stop=source.rows)
    steps_per_epoch = -(-(train.stop - train.start) // spec.data.batch_size)
    return JobPlan(
        **_same(spec),
        **_same(spec.parallelism),
        programs_json=_text(programs_to_json(programs)),
        data=spec.data.model_copy(update={"train": train}),
        steps=spec.run.steps or (spec.run.epochs or 0) * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        evaluate_every=spec.run.evaluate_every,
        keys=_keys(programs, spec.parallelism, rule),
        parameters=[_parameter(key) for key in programs.keys],
        rule=rule.rule,
        hyper=rule.hyper,
        average=spec.ema,
        evaluate_average=spec.evaluate_ema,
        commit=commit_of(spec),
        metric_names=["loss", *spec.metrics, *(OF_COMMIT if commit_of(spec) is not None else ())],
        dims=dims_of(spec, programs.train.inputs, source),
        content=source.content,
        state_arrays=len(rule.states) + (spec.ema is not None),
    )


def _same(said: JobSpec | Parallelism) -> dict[str, Any]:
    """The options that a plan has as they were said, under the same names."""
    names = type(said).model_fields.keys() & JobPlan.model_fields.keys() - {"data", "resume"}
    return {name: getattr(said, name) for name in names}


def _keys(programs: Programs, parallelism: Parallelism, rule: RulePlan) -> list[KeySpec]:
    """Every slot contributes to what the train program sends: all run the same one. To another key nobody does.

    Where workers update, the gradients of dense keys have keys of their own, and nobody contributes to the weights.
    Without shards nothing is merged, and the worker updates either way.
    """
    sent = {node.attributes["key"] for node in programs.train.nodes if node.op_type in {SEND, SEND_ROWS}}
    by_store = parallelism.update is UpdateBy.SHARDS or not parallelism.shards
    keys: list[KeySpec] = []
    for key in programs.keys:
        planned = _key(key, parallelism.workers if key.key in sent else 0, rule)
        if by_store or key.rows or key.update is not Update.RULE or not planned.slots:
            keys.append(planned)
        else:
            keys += [planned.model_copy(update={"slots": []}), _gradient(planned)]
    return keys


def _gradient(key: KeySpec) -> KeySpec:
    zeros = InitializerSpec(op_type="ConstantOfShape", attributes={"value": 0.0})
    changes = {"key": gradient_key(key.key), "initializer": zeros, "update": Update.GRADIENT.value}
    changes |= {"whole": False, "multipliers": {}}
    return key.model_copy(update=changes)


def dims_of(spec: JobSpec, inputs: Iterable[Input], source: Description) -> dict[str, int]:
    """Symbolic dimension -> size, from the rows of the columns that feed the graph's inputs."""
    sizes: dict[str, int] = {}
    for given in inputs:
        column = source.column(spec.data.columns.get(given.name, ""))
        if column is not None:
            for asked, there in zip(given.type.shape[1:], column.row_shape, strict=True):
                if isinstance(asked, str):
                    sizes[asked] = there
    return sizes


def _key(key: KeyPlan, contributing: int, rule: RulePlan) -> KeySpec:
    by_rule = key.update is Update.RULE
    made_by = InitializerSpec(op_type=key.initializer.op_type, attributes=dict(key.initializer.attributes))
    return KeySpec(
        key=key.key,
        dtype=key.type.dtype.value,
        shape=list(key.type.static_shape),
        initializer=made_by,
        update=key.update.value,
        priority=key.priority,
        slots=list(range(contributing)),
        rows=key.rows,
        whole=bool(rule.whole) and by_rule,
        multipliers=rule.multipliers(key.key) if by_rule else {},
        sparse="standard" if key.rows and by_rule and contributing and not key.lazy_update else "lazy",
    )


def _parameter(key: KeyPlan) -> ParameterInfo:
    return ParameterInfo(
        name=key.key,
        dtype=key.type.dtype.value,
        shape=list(key.type.static_shape),
        trainable=key.update is Update.RULE,
    )


def _text(programs: Mapping[str, Any]) -> str:
    return json.dumps(programs, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
