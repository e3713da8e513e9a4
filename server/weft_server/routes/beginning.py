"""What a submitted job begins with: values that it names with `init_from`, or the snapshot of a job that it resumes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path

from weft.api.agent import Snapshot
from weft.api.job import FromJob, FromUpload, JobSpec, Mode, ParameterInfo
from weft.api.lifecycle import JobState
from weft.api.problem import FieldError
from weft.api.values import STATE
from weft_graph.rules.built_in import states_of
from weft_graph.rules.schedule import Schedule, hyper_from_json
from weft_server.control.snapshots import job_of
from weft_server.planning.plan import Given, JobPlan
from weft_server.refusals import (
    JobRefusedError,
    KeeperSilentError,
    NotWrittenError,
    RefusalError,
    UnknownError,
    WrongStateError,
    listed,
)
from weft_server.routes.context import Context
from weft_server.storage.job_files import OF_UPLOAD
from weft_server.storage.parameter_file import (
    MOST_ERRORS,
    Header,
    ParameterFileError,
    largest_header,
    part_errors,
    read_header,
)
from weft_server.storage.snapshot_files import SnapshotIncompleteError, is_there, newest
from weft_server.storage.uploads import LARGEST_HEADER_BYTES
from weft_server.users import User

SHOWN = 3
"""Names of each side, where none is the other's."""

TRIES = 3
"""A document may go between the moment it is found and the moment it is copied; a second look finds where it is."""


@asynccontextmanager
async def begun(
    use: Context, caller: User, job: str, spec: JobSpec, plan: JobPlan, *, keep: bool = True
) -> AsyncIterator[JobPlan]:
    """The plan with its first values, which lie in the job's files; they go again where the block fails, or not `keep`.

    Raises JobRefusedError with pointers below `/init_from` or `/resume`, also where a parameter has no other first
    value and gets none; a dry run, which is not kept, has that in its answer: values may go up after it.
    """
    if spec.resume is not None:
        async with AsyncExitStack() as held:
            snapshot, before = await _resumed(use, caller, spec.resume, plan, held)
            told = f"goes on from step {snapshot.step} of job {spec.resume}, with all that it had then"
            if is_other_data(plan, before):
                told += ", but with other data: the source holds other values than when that job was submitted"
            yield plan.model_copy(update={"resume": snapshot, "beginning": _with_end(told, plan)})
        return
    if spec.init_from is None:
        if keep:
            check_given(plan, ())
        yield plan.model_copy(update={"beginning": _with_end(None, plan)})
        return
    threads, files = use.service.threads, use.service.files
    try:
        name = f"{OF_UPLOAD}{spec.init_from.upload}" if isinstance(spec.init_from, FromUpload) else FILE
        path = await _taken(use, caller, job, spec.init_from, name)
        names = await threads.on_files(_fitting, path, plan.parameters)
        check_given(plan, names)
        given = Given(names=names, file=name)
        yield plan.model_copy(update={"given": given, "beginning": _with_end(_told(spec.init_from, plan, names), plan)})
    except Exception:
        # Not where the caller went away: the job may have been kept. If not, the next start of the server tidies up.
        keep = False
        raise
    finally:
        if not keep:
            await threads.on_files(files.remove, job)


FILE = "first"


def _told(source: FromJob | FromUpload, plan: JobPlan, names: Collection[str]) -> str | None:
    """What a job takes of a document and what it leaves; None for a model that brings all its parameters along."""
    rest = [each.name for each in plan.parameters if each.name not in names]
    taken = f"{len(names)} of its {len(plan.parameters)} parameters" if rest else "the parameters"
    if isinstance(source, FromUpload):
        told = f"starts with uploaded values of {taken}"
    else:
        anew = "a new optimizer state and new averages" if plan.average else "a new optimizer state"
        told = f"starts with {taken} of job {source.job}, at step 0 with {anew} (`weft resume` keeps step and state)"
    if rest:
        return f"{told}; {listed(rest)} {'is' if len(rest) == 1 else 'are'} initialized as the graph says"
    return None if isinstance(source, FromUpload) else told


def _with_end(told: str | None, plan: JobPlan) -> str | None:
    """The sentence, and that the learning rate is 0 for the last steps of the job, where its schedule ends before."""
    lr = hyper_from_json(plan.hyper.get("lr", 1.0))
    # In async mode a schedule counts each worker's own steps, of which no plan says how many there will be.
    if not isinstance(lr, Schedule) or plan.mode is not Mode.SYNC or lr.warmup_steps >= plan.steps:
        return told
    first = bisect_left(range(plan.steps), True, lo=lr.warmup_steps, key=lambda step: lr.at(step) == 0)
    if first == plan.steps:
        return told
    ends = f"trains with lr 0 from step {first} of {plan.steps} on, where its schedule ends"
    return ends if told is None else f"{told}; it {ends}"


def check_given(plan: JobPlan, names: Collection[str]) -> None:
    """Raises JobRefusedError for parameters whose first value only a document brings, and none does."""
    if (lacking := plan.lacking(names)) is not None:
        raise _refused("/init_from", lacking)


async def _resumed(
    use: Context, caller: User, job: str, plan: JobPlan, held: AsyncExitStack
) -> tuple[Snapshot, JobPlan]:
    """(the snapshot that a job goes on from, the plan of the one that wrote it). Nobody deletes it while `held` is."""
    service = use.service
    try:
        state, before = (await use.job(caller, job)).state, await service.plan(job)
    except RefusalError as error:
        raise _refused("/resume", str(error)) from error
    if not state.is_terminal:
        raise _refused("/resume", f"job {job} {state.told}: it goes on by itself; scale it, or cancel it first")
    location = use.settings.snapshots_location
    await held.enter_async_context(service.alone(job))
    try:
        found = None if location is None else await service.threads.on_files(newest, location, job)
    except SnapshotIncompleteError as error:
        raise _refused("/resume", f"the snapshot of job {job} cannot be used: {error}") from error
    snapshot = found
    if snapshot is None and before.resume is not None:
        await held.enter_async_context(service.alone(job_of(before.resume)))
        if await service.threads.on_files(is_there, before.resume):
            snapshot = before.resume
    if snapshot is None:
        ended = state is JobState.SUCCEEDED
        advice = f"begin a new job with its parameters, --init-from {job}" if ended else "submit it again"
        raise _refused("/resume", f"job {job} {state.told} and left no snapshot to go on from: {advice}")
    errors = list(islice(_resume_errors(plan, before, snapshot.step), MOST_ERRORS))
    if errors:
        raise JobRefusedError(errors)
    return snapshot, before


def _resume_errors(plan: JobPlan, before: JobPlan, step: int) -> Iterator[FieldError]:
    """What of a job does not fit the snapshot of an earlier one, which is of that step and at some location."""
    if why := plan.no_snapshots(location="", asked_for=True):
        yield FieldError(pointer="/resume", detail=f"such a job has no snapshots to go on from: {why}")
        return
    held = {key.key: key for key in before.keys}
    for key in plan.keys:
        old = held.get(key.key)
        if old is None:
            yield FieldError(pointer="/resume", detail=f"that job has no parameter {key.key!r}", node=key.key)
        elif (old.dtype, old.shape) != (key.dtype, key.shape):
            was, is_now = f"{old.dtype}{old.shape}", f"{key.dtype}{key.shape}"
            detail = f"parameter {key.key!r} is {is_now}, that job's is {was}"
            yield FieldError(pointer="/resume", detail=detail, node=key.key)
        elif (old.rows, old.sparse) != (key.rows, key.sparse):
            was, is_now = (f"{each.sparse} by rows" if each.rows else "updated whole" for each in (old, key))
            detail = f"parameter {key.key!r} is {is_now}, that job's is {was}"
            yield FieldError(pointer="/resume", detail=detail, node=key.key)
    # Of the same names alone it may mean another thing: LARS has the learning rate in its momentum.
    is_cut_alike = all(key.whole == held[key.key].whole for key in plan.keys if key.key in held)
    if states_of(plan.rule).keys() != states_of(before.rule).keys() or not is_cut_alike:
        detail = "that job's optimizer is another, with state of its own; init_from takes its values alone"
        yield FieldError(pointer="/optimizer", detail=detail)
    if plan.average is not None and before.average is None:
        yield FieldError(pointer="/ema", detail="that job has no averages to go on with")
    if plan.slice_bytes != before.slice_bytes:
        detail = f"{plan.slice_bytes}: that job's slices are of {before.slice_bytes} bytes"
        yield FieldError(pointer="/parallelism/slice_bytes", detail=detail)
    if plan.steps <= step:
        same = plan.steps == before.steps
        asked = "it has no more steps" if same else f"{plan.steps} steps in all were asked for"
        detail = f"the job goes on from step {step}, and {asked}; give more steps or epochs, the first job's included"
        yield FieldError(pointer="/run", detail=detail)


def is_other_data(plan: JobPlan, before: JobPlan) -> bool:
    """Whether what the data holds is known to have changed."""
    return bool(before.content) and bool(plan.content) and plan.content != before.content


def check_fits(plan: JobPlan, before: JobPlan) -> None:
    """Raises JobRefusedError where a job that runs cannot go on so."""
    errors = list(islice(_resume_errors(plan, before, -1), MOST_ERRORS))
    if is_other_data(plan, before):
        errors.append(FieldError(pointer="", detail="its data is not what it was when the job was submitted"))
    if errors:
        raise JobRefusedError([error.model_copy(update={"pointer": ""}) for error in errors])


async def _taken(use: Context, caller: User, job: str, source: FromJob | FromUpload, name: str) -> Path:
    """A copy of the source's document among the job's files."""
    threads, files = use.service.threads, use.service.files
    pointer = "/init_from/job" if isinstance(source, FromJob) else "/init_from/upload"
    try:
        for _ in range(TRIES):
            found = await _found(use, caller, source)
            try:
                return await threads.on_files(files.take, found, job, name)
            except FileNotFoundError:
                continue
    except NotWrittenError:
        raise
    except (RefusalError, KeeperSilentError) as error:
        raise _refused(pointer, str(error)) from error
    raise _refused(pointer, "its values go away as they are looked at")


async def _found(use: Context, caller: User, source: FromJob | FromUpload) -> Path:
    """Raises UnknownError, also for what the caller does not see."""
    service = use.service
    if isinstance(source, FromUpload):
        try:
            return await service.threads.on_files(use.uploads.find, source.upload, service.clock().at, caller.project)
        except UnknownError:
            copies = await service.threads.on_files(service.files.of_upload, source.upload)
            projects = await service.threads.read(service.records.projects, list(copies))
            seen = [path for job, path in copies.items() if caller.sees(projects.get(job, ""))]
            if not seen:
                raise
            return seen[0]
    state = (await use.job(caller, source.job)).state
    final = await service.final(source.job)
    if final is not None:
        return final
    if state.is_terminal:
        raise WrongStateError(f"job {source.job} {state.told}, so it has no values")
    path, _ = await service.values.live(source.job, use.settings.values_deadline_s)
    return path


def _fitting(path: Path, parameters: Sequence[ParameterInfo]) -> list[str]:
    """Parameters that the document has values of. Raises JobRefusedError where some do not fit, or none is there."""
    try:
        found = read_header(path, max(LARGEST_HEADER_BYTES, largest_header(parameters)))
    except ParameterFileError as error:
        raise _refused("/init_from", str(error)) from error
    known = {each.name for each in parameters}
    common: Header = {name: kind for name, kind in found.items() if name in known}
    wrong = list(islice(part_errors(common, parameters), MOST_ERRORS))
    if wrong:
        raise JobRefusedError([FieldError(pointer="/init_from", detail=each.detail, node=each.node) for each in wrong])
    if not common:
        has = [name for name in found if not name.startswith(STATE)]
        names = " and ".join(listed(each[:SHOWN]) for each in (has, [each.name for each in parameters]) if each)
        detail = (
            f"none of its {len(has)} parameters is one of the job's {len(parameters)}, by their names, such as {names}"
        )
        raise _refused("/init_from", detail)
    return [each.name for each in parameters if each.name in common]


def _refused(pointer: str, detail: str) -> JobRefusedError:
    return JobRefusedError([FieldError(pointer=pointer, detail=detail)])
