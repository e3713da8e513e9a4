"""What a run is given: an allocation of the server, read and checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weft.api.agent import WorkerAllocation
from weft_data.errors import FileFormatError
from weft_data.numpy_source import LOOK_S, SETTLE_S, open_source
from weft_data.schedule import BatchPlan
from weft_data.source import Source
from weft_graph.errors import GraphError
from weft_graph.program import Programs
from weft_graph.program_json import programs_from_json
from weft_kernels.averaging import AVERAGE
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription, descriptions
from weft_kvstore.snapshot_files import Snapshot, snapshots
from weft_worker.contributions import Contributions, check_tables, contributions_of
from weft_worker.errors import TaskError
from weft_worker.local_keys import LocalKeys, local_keys_of
from weft_worker.pace import Pace, pace_of
from weft_worker.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Task:
    """A slot of a job, as records of the rooms that it concerns. `description` is that of the store itself, `local`
    says which of its keys this worker updates, and how its programs see the store."""

    allocation: WorkerAllocation
    programs: Programs
    description: StoreDescription
    local: LocalKeys
    contributions: Contributions

    @property
    def snapshot(self) -> Snapshot | None:
        """Where the run goes on; None: it begins with step 0."""
        found = self.allocation.snapshot
        return None if found is None else snapshots.from_builtins(found.model_dump())

    @property
    def first_step(self) -> int:
        """The first that is to be done."""
        return 0 if self.allocation.snapshot is None else self.allocation.snapshot.step

    @property
    def settles(self) -> bool:
        """Whether values that are kept or evaluated are asked for as settled ones, which travel as they are; where
        steps are of all slots, that waits for nobody else."""
        return self.description.mode is Mode.SYNC and self.description.compression is not None

    @property
    def is_async(self) -> bool:
        """Whether each slot goes its own way, without waiting for the others."""
        return self.description.mode is Mode.ASYNC

    @property
    def pace(self) -> Pace:
        """What this slot trains and costs least to pull: its version tells how far the other slots are."""
        own = [key for key in self.local.seen.keys if key.key in self.contributions.sent]
        if not own:
            raise TaskError(f"slot {self.allocation.slot} sends no key at all")
        return pace_of(own)

    @property
    def keys(self) -> tuple[KeyDescription, ...]:
        """Every parameter of the job, the most urgent first."""
        return tuple(sorted(self.local.seen.keys, key=lambda key: (key.priority, key.key)))

    @property
    def parameters(self) -> dict[str, KeyDescription]:
        """The same by name."""
        return {key.key: key for key in self.keys}

    @property
    def kept_state(self) -> tuple[str, ...]:
        """The arrays that go with the parameters: the optimizer's state where the job keeps it, else averages alone."""
        if self.allocation.keep_state:
            return tuple(rule_of(self.description).state)
        return (AVERAGE,) if self.description.average is not None else ()


def task_of(allocation: WorkerAllocation) -> Task:
    """Reads the allocation's documents. Raises TaskError: one cannot be read, or they do not fit together."""
    try:
        programs = programs_from_json(allocation.programs)
    except GraphError as error:
        raise TaskError(f"programs cannot be read at {error.pointer or '/'}: {error.message}") from error
    try:
        description = descriptions.from_builtins(allocation.store.model_dump(mode="json"))
    except msgspec.ValidationError as error:
        raise TaskError(f"the store's description cannot be read: {error}") from error
    if not 0 <= allocation.slot < description.slots:
        raise TaskError(f"slot {allocation.slot} is none of the store's {description.slots}")
    local = local_keys_of(description)
    for program in (programs.train, programs.evaluate):
        check_tables(program, local.seen)
    contributions = contributions_of(programs.train, local.seen, allocation.slot)
    return Task(allocation, programs, description, local, contributions)


def open_data(task: Task, roots: tuple[Path, ...] | None, tell: Callable[[str], None]) -> Source:
    """The job's source, with the columns that the job names, and the data that it was submitted with. The caller closes
    it. `tell` hears what people should know. Raises DataError, TaskError for other data."""
    data, content = task.allocation.data, task.allocation.content
    columns = sorted(set(data.columns.values()))
    until = time.monotonic() + SETTLE_S
    while True:
        try:
            source = open_source(data.source.type, data.source.path, roots=roots, columns=columns, tell=tell)
            break
        except FileFormatError:
            if not content or time.monotonic() >= until:
                raise
            time.sleep(LOOK_S)  # it was read at the submission: it is being written anew
    if content and source.describe().content != content:
        source.close()
        raise TaskError(
            f"{data.source.path!r} holds other data than when the job was submitted: put back what it held, then "
            "`weft resume` goes on from the newest snapshot; or submit the job again, to train on what it holds now"
        )
    return source


def schedule_of(task: Task, rows: int) -> Schedule:
    """The run's schedule over a source of `rows`. Raises TaskError for rows that the source does not have."""
    allocation, data = task.allocation, task.allocation.data
    start, stop = (0, rows) if data.train is None else (data.train.start, data.train.stop)
    held_out = None if data.evaluate is None else (data.evaluate.start, data.evaluate.stop)
    for what, last in (("train", stop), ("evaluate", held_out[1] if held_out else 0)):
        if last > rows:
            raise TaskError(f"data.{what} ends at row {last}; {data.source.path!r} has {rows} rows")
    batches = BatchPlan(start, stop, data.batch_size, allocation.seed, data.shuffle)
    return Schedule(
        batches,
        steps=allocation.steps,
        slot=allocation.slot,
        slots=task.description.slots,
        evaluation=held_out,
        evaluate_every=allocation.evaluate_every,
        summed=not task.is_async,
        accumulate=allocation.accumulate,
    )
