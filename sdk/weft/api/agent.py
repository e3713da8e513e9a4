"""How worker and shard daemons talk with the server: they register, say that they live, report facts, take orders.

An agent registers (`POST /v1/agents`), then calls `POST /v1/agents/{id}/heartbeat` for ever. The answer is everything
that the agent is to hold now: what it lacks it starts, what is not in it any more it stops. The server keeps the call
open for up to `wait_s` while nothing has changed. With `Prefer: return=minimal` it answers 204 then, and orders leave
programs out: an agent fetches them once by their hash, from `GET /v1/allocations/{id}/programs/{sha256}?term=`, and
keeps them. An agent that is silent is suspected: it is given nothing new, and is waited for. Facts go to
`POST /v1/allocations/{id}/reports`; the final parameters go to
`PUT /v1/allocations/{id}/parameters?term=&step=&final=`, one safetensors document. Each call carries the allocation's
term; the server refuses another one with 409 `stale-term`, an allocation that it does not know
with 404 `unknown-allocation`, an unknown agent with 404 `unknown-agent` (register again). An agent that ends takes
leave with `DELETE /v1/agents/{id}`, which counts against no job's `max_restarts`; with `?reason=` its parent tells how
it ended, and that counts. One that hangs up on a heartbeat and does not call again is lost soon, and
so is one whose name another process registers; any other after `lost_after_s` of silence.

A server that asks for tokens answers a registration with the agent's credential, and has one in each allocation: calls
below `/v1/agents/{id}` and `/v1/allocations/{id}` are made with these. Another one's is refused with 403
`wrong-credential`; 401 `unknown-credential` says that the server has another key now (register again).

Whatever is answered is written: a server that is killed and starts again knows it. 503 `records-unavailable`, with
`Retry-After`, says that it is not written yet; the same call comes again then. The keeper reads first values from
`GET /v1/allocations/{id}/given?term=` and values that it is to set from `GET /v1/allocations/{id}/sets/{number}?term=`,
until it has reported the number; 409 `not-wanted` says that they are done or were given up. With `keep_state` the final
document holds tensors `weft.state/NAME/KEY` of every trainable parameter too, each of the parameter's type; in live
documents there may be none.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from weft.api.base import Count, Identifier, Measured, Model, Name
from weft.api.data import DataSpec
from weft.api.event import LogLevel
from weft.api.job import Traffic
from weft.api.lifecycle import AgentState, AllocationEvent
from weft.api.store import StoreSpec
from weft.api.trace import ProcessTrace, TraceWindow

CURVE_KEY: Final = r"^[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$"
ENDPOINT: Final = r"^[a-z]+://[!-~]{1,500}$"


LOST_AFTER_S: Final = 60.0
"""How long a process is waited for that is silent, unless the server says otherwise."""

Seconds = Annotated[float, Field(gt=0)]


class AgentKind(StrEnum):
    WORKER = "worker"
    SHARD = "shard"


class Registration(Model):
    kind: AgentKind
    name: Name
    """What people call it, `worker-0`; not necessarily unique."""
    pid: Count
    nonce: Annotated[str, Field(pattern=r"^[0-9A-Za-z]{1,64}$")] | None = None
    """Drawn by each process: a registration of the same kind, name, process id and nonce replaces the earlier one."""
    job_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    """The most private memory that a job's process may take there: a job that needs more is not given to it. None where
    nobody knows, as on a GPU."""
    device: Annotated[str, Field(max_length=200)] = ""
    """What a worker computes on: `cpu`, or a GPU's number and model, `cuda:0 NVIDIA H100`. Empty of a shard."""


class Registered(Model):
    id: Identifier
    token: str | None = Field(default=None, repr=False)
    """What the agent's further calls are made with, where the server asks for tokens."""
    heartbeat_interval_s: float
    lost_after_s: float
    """An agent that is silent for so long is lost; it is suspected long before."""


MINIMAL = "return=minimal"
"""The header `Prefer` of a heartbeat: what the agent knows already is not sent again."""


class Heartbeat(Model):
    known: Count = 0
    """The `version` of the last orders received; the server answers at once when it has newer ones."""
    wait_s: Annotated[float, Field(ge=0, le=10)] = 0


class CurvePair(Model):
    """A pair of CURVE keys in ZeroMQ's Z85, made for one job. The secret one is in no text that this makes."""

    public: Annotated[str, Field(pattern=CURVE_KEY)]
    secret: Annotated[str, Field(pattern=CURVE_KEY, repr=False)]


class SnapshotFile(Model):
    """A file of a snapshot: what one process held."""

    name: Annotated[str, Field(pattern=r"^[a-z]+-[0-9]+\.safetensors$")]
    nbytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    folder: Annotated[str, Field(pattern=r"^([0-9]+-[0-9]+)?$")] = ""
    """The name of an earlier snapshot's folder beside its own, where it lies there."""


class Snapshot(Model):
    """What a job was at one step, in files of its processes: values, the optimizer's state, updates made. Of tables a
    file may have only what has changed since another of that name, which is named before it."""

    step: Count
    """The values are those after so many steps: this step is the next."""
    folder: Annotated[str, Field(min_length=1, max_length=4096)]
    """Where the files are: a path, or a URL that fsspec reads."""
    files: Annotated[list[SnapshotFile], Field(max_length=1 << 16)]
    loss_scale: float | None = None
    """Of the next step, where the loss is scaled."""
    finite_steps: Count = 0
    """Steps in a row that were finite since the loss scale last changed."""


class WorkerAllocation(Model):
    """A slot of a job, for a worker: all it needs to run."""

    kind: Literal["worker"] = "worker"
    id: Identifier
    token: str | None = Field(default=None, repr=False)
    """What calls about this allocation are made with, where the server asks for tokens."""
    term: int
    incarnation: int
    job: Identifier
    slot: int
    programs: dict[str, Any] = Field(default_factory=dict)
    """JSON form of `weft_graph.program.Programs`; empty where the agent is to have those of the hash."""
    programs_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Of the document that `GET /v1/allocations/{id}/programs/{sha256}` gives; empty: it is not asked for."""
    data: DataSpec
    seed: int
    steps: int
    evaluate_every: int | None
    """Steps between evaluations; None for after each pass."""
    keeper: bool
    """Whether this worker brings the final parameters to the server; the scheduler chose it."""
    store: StoreSpec
    given: list[str] = Field(default_factory=list)
    """Keys whose first values the keeper sets before step 0, from `GET /v1/allocations/{id}/given?term=`, a safetensors
    document; every slot's Fetch of version 0 waits for them."""
    evaluate_average: bool = False
    """Whether evaluations read the averages that the shards keep."""
    accumulate: int = 1
    """Parts in which this slot's samples of a step are computed."""
    keep_state: bool = False
    """Whether the optimizer's state goes with the final parameters."""
    allow_tf32: bool = False
    """Whether a GPU may compute products of float32 in TF32."""
    trace: TraceWindow = TraceWindow(steps=0)
    curve: CurvePair | None = None
    """The keys of this job's workers, where the store's links are encrypted."""
    snapshot: Snapshot | None = None
    """Where the job goes on; None: it begins with step 0. A worker without shards reads its values from it."""
    lost_after_s: Seconds = LOST_AFTER_S
    """A shard that is silent for so long is lost."""
    content: str = ""
    """What the data's columns held at the job's submission; a worker that finds other data fails. Empty: anything."""
    last_snapshot: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """The folder that a worker writes what it alone holds after the last step to, before it is done."""


class ShardAllocation(Model):
    """A place in a job's store, for a shard. Workers are told only after every shard is ready."""

    kind: Literal["shard"] = "shard"
    id: Identifier
    token: str | None = Field(default=None, repr=False)
    """What calls about this allocation are made with, where the server asks for tokens."""
    term: int
    job: Identifier
    shard: int
    store: StoreSpec
    curve: CurvePair | None = None
    """This shard's keys, where the store's links are encrypted."""
    curve_clients: list[str] = Field(default_factory=list)
    """The public keys of those that it accepts: this job's workers."""
    snapshot: Snapshot | None = None
    """What its values are read from; None: they are the first ones."""
    keep_previous: bool = False
    """Whether it keeps the values before the last step too: a worker that takes over a slot may have to do the step
    again that was under way."""
    lost_after_s: Seconds = LOST_AFTER_S
    """A worker that is silent for so long is lost."""
    trace: TraceWindow = TraceWindow(steps=0)


Allocation = Annotated[WorkerAllocation | ShardAllocation, Field(discriminator="kind")]


class SetOrder(Model):
    """The keeper is to set parameters of its running job at the next step that no worker has begun: it reads them from
    `GET /v1/allocations/{id}/sets/{number}?term=`, a safetensors document, and reports the number as done."""

    allocation: Identifier
    number: Count


class SetDone(Model):
    """Parameters were set after step `step`; or they could not be, and why."""

    number: Count
    step: Count
    error: Annotated[str, Field(max_length=1 << 16)] | None = None


class SnapshotOrder(Model):
    """What an allocation's process holds at version `step` is to be written to a folder, while training goes on."""

    allocation: Identifier
    step: Count
    folder: Annotated[str, Field(min_length=1, max_length=4096)]
    since: Count | None = None
    """Of tables only what has changed since this process wrote that step's is needed."""


class SnapshotDone(Model):
    """An allocation's file of a snapshot was written; or it was not, and why."""

    step: Count
    file: SnapshotFile | None = None
    error: Annotated[str, Field(max_length=1 << 16)] | None = None
    missed: bool = False
    """The step had passed when the order came: a later one may do."""
    since: Count | None = None
    """Of tables the file has only what has changed since this step's."""
    loss_scale: float | None = None
    finite_steps: Count = 0


class Orders(Model, hide_input_in_errors=True):
    """All that an agent is to hold now. `upload` names allocations whose parameters the server wants at once."""

    version: int
    allocations: list[Allocation]
    upload: list[Identifier] = Field(default_factory=list)
    sets: list[SetOrder] = Field(default_factory=list)
    """In order; one that is done is not in it any more."""
    snapshots: list[SnapshotOrder] = Field(default_factory=list)


REPORT_EVERY_STEPS = 10
MOST_REPORTS = 1000
"""Of a run, beside those at the ends of passes: a long run reports less often."""


def report_interval(steps: int) -> int:
    """Steps between two reports of a run of `steps`; the same on every slot."""
    return max(REPORT_EVERY_STEPS, -(-steps // MOST_REPORTS))


class MetricReport(Model):
    """Sums over this slot's samples since its last report of this split; the server adds the slots up."""

    split: Literal["train", "evaluate"]
    step: Count
    """Steps finished when it was taken. All slots report at the same steps."""
    samples: Count
    sums: Annotated[dict[Name, Measured], Field(max_length=1024)]
    not_finite: Annotated[dict[Name, Count], Field(max_length=1024)] = Field(default_factory=dict)
    """For each metric that was no finite number of some step since the last report, the first such step, from 1."""
    bad_data: Annotated[str, Field(max_length=1024)] = ""
    """Where the data of that step has a number that is not finite, if it has: `row 7 of column 'x'`."""


class LogReport(Model):
    level: LogLevel
    message: Annotated[str, Field(max_length=1 << 16)]


class Report(Model):
    """Facts about one allocation, in order. `seq` counts an allocation's reports from 1: a repeated one is ignored."""

    term: Count
    seq: Count
    event: AllocationEvent | None = None
    reason: Annotated[str, Field(max_length=1 << 16)] | None = None
    """With `failed`: what failed, naming slot, key and step where they are known."""
    lost: bool = False
    """With `failed`: a process was lost, this one or one that it waited for. The job may go on; what else fails
    would fail again."""
    endpoint: Annotated[str, Field(pattern=ENDPOINT)] | None = None
    """With `ready` of a shard: the ZeroMQ endpoint by which this job's workers reach it."""
    step: Count | None = None
    """Steps finished."""
    metrics: Annotated[list[MetricReport], Field(max_length=4096)] = Field(default_factory=list)
    logs: Annotated[list[LogReport], Field(max_length=4096)] = Field(default_factory=list)
    traffic: Traffic | None = None
    """Of this slot since its start."""
    sets: Annotated[list[SetDone], Field(max_length=64)] = Field(default_factory=list)
    snapshot: SnapshotDone | None = None
    trace: ProcessTrace | None = None
    """A part of what the process did in the job's traced steps."""


class AgentInfo(Model):
    """An agent as the server sees it now."""

    id: Identifier
    kind: AgentKind
    name: Name
    pid: int
    state: AgentState
    registered_at: datetime
    silent_s: float
    """Seconds since its last heartbeat."""
    device: str = ""
    """What a worker computes on, as in its registration."""
    jobs: list[Identifier]
    """Jobs that have not ended in which it holds a place, or did when it was lost."""


class AgentList(Model):
    agents: list[AgentInfo]
