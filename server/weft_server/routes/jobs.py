"""`/v1/jobs`: submit, list, look at, stop, cancel."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from sqlalchemy.exc import IntegrityError

from weft.api.agent import AgentKind
from weft.api.dry_run import DryRun, Passes
from weft.api.earlier import is_earlier
from weft.api.job import Job, JobPage, JobSpec, ParameterList, Scale
from weft.api.lifecycle import JobState
from weft_server.bodies import StrictRoute
from weft_server.control.memory import Scaling
from weft_server.planning.estimate import Bounds
from weft_server.problems import CHECKED, OF_JOB, ProblemError, sends
from weft_server.routes.beginning import begun, check_fits
from weft_server.routes.context import Caller, Context, IdempotencyKey, PathId, Use
from weft_server.routes.documents import InPieces
from weft_server.service import new_id
from weft_server.storage.records import KeyReusedError
from weft_server.submissions import check_scaled, check_submitted, dry_run_text, spec_text
from weft_server.users import User

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    response_model=Job,
    responses={200: {"model": DryRun, "description": "A dry run"}},
    openapi_extra=sends(*CHECKED, "idempotency-key-reused", "too-many-jobs", "not-stored", "records-unavailable"),
)
async def submit_job(
    spec: JobSpec,  # for its schema: the check reads the body
    request: Request,
    response: Response,
    use: Use,
    *,
    caller: Caller,
    idempotency_key: IdempotencyKey = None,
    dry_run: Annotated[bool, Query(description="check and say what the job would be; nothing is kept")] = False,
    passes: Annotated[Passes | None, Query(description="of a dry run: also say what each pass does")] = None,
) -> Job | Response:
    """Checks the job and keeps it; it starts when it fits. The same `Idempotency-Key` and body give the same job."""
    body = await request.body()
    if dry_run:
        return Response(await _dry_run(use, body, request, caller, passes), media_type="application/json")
    digest = hashlib.sha256(body).hexdigest()
    job = await _submitted(use, caller, idempotency_key, digest)
    if job is None:
        found = await use.computed(request, len(body), check_submitted, body, *_bounds(use), use.settings.job_nodes)
        identifier = new_id()
        try:
            async with begun(use, caller, identifier, found.spec, found.plan) as plan:
                job = await use.service.submit(
                    identifier, found.text, plan, project=caller.home, key=idempotency_key, digest=digest
                )
        except IntegrityError:
            # A call with the same key was faster. Anything else that breaks integrity is our fault, and raised.
            job = await _submitted(use, caller, idempotency_key, digest)
            if job is None:
                raise
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job


@router.get("", openapi_extra=sends("records-unavailable"))
async def list_jobs(
    use: Use,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[int | None, Query(ge=1, le=1 << 62, description="`next` of the page before")] = None,
    state: Annotated[list[JobState] | None, Query()] = None,
) -> JobPage:
    """Jobs, newest first."""
    page = await use.service.threads.read(use.service.records.jobs, limit, cursor, state or [], caller.project)
    return page.model_copy(update={"jobs": await use.service.with_sizes(page.jobs)})


@router.get("/{job}", openapi_extra=sends(*OF_JOB))
async def get_job(job: PathId, use: Use) -> Job:
    """A job as it is now."""
    (found,) = await use.service.with_sizes([await use.service.job(job)])
    return found


@router.delete("/{job}", status_code=HTTPStatus.NO_CONTENT, openapi_extra=sends(*OF_JOB, "wrong-state", "not-removed"))
async def remove_job(job: PathId, use: Use) -> None:
    """Deletes a job that has ended, with its result, its snapshots and its log: nothing of it is left."""
    await use.service.remove(job)


@router.get("/{job}/spec", response_model=JobSpec, openapi_extra=sends(*OF_JOB, *CHECKED))
async def get_job_spec(
    job: PathId, use: Use, request: Request, user_agent: Annotated[str, Header(include_in_schema=False)] = ""
) -> Response:
    """What was submitted, its graph included: with the job's values, all there is of its model."""
    text = await use.service.spec(job)
    told = await use.computed(request, len(text), spec_text, text, is_earlier(user_agent), low_priority=True)
    return InPieces(told, media_type="application/json")


@router.post("/{job}/cancel", openapi_extra=sends(*OF_JOB, "wrong-state", "not-removed"))
async def cancel_job(
    job: PathId,
    use: Use,
    caller: Caller,
    *,
    discard: Annotated[bool, Query(description="delete its snapshots too, so that it cannot be resumed")] = False,
) -> Job:
    """Ends a job that has not ended. Its newest snapshot is kept. Cancelling it again changes nothing."""
    return await use.service.cancel(job, why=caller.asking, discard=discard)


@router.post("/{job}/stop", openapi_extra=sends(*OF_JOB, "wrong-state"))
async def stop_job(job: PathId, use: Use, caller: Caller) -> Job:
    """Has a job that runs end at a step soon; what it has trained by then is its result. It can be resumed."""
    return await use.service.stop_job(job, why=caller.asking)


@router.post("/{job}/scale", openapi_extra=sends(*OF_JOB, *CHECKED, "wrong-state"))
async def scale_job(job: PathId, asked: Scale, request: Request, use: Use) -> Job:
    """Has a job that runs go on with other numbers of workers and shards, from a snapshot at a step soon."""
    before, text = await use.service.plan(job), await use.service.spec(job)
    found = await use.computed(request, len(text), check_scaled, text, asked, *_bounds(use))
    check_fits(found.plan, before)
    return await use.service.scale(job, Scaling(spec=found.text, plan=found.plan))


@router.get("/{job}/parameters", openapi_extra=sends(*OF_JOB))
async def list_parameters(job: PathId, use: Use) -> ParameterList:
    """What the job's parameters are, without values."""
    return ParameterList(parameters=(await use.service.plan(job)).parameters)


def _bounds(use: Context) -> tuple[tuple[Path, ...] | None, Bounds]:
    """(where data may be read from, what a job may take)."""
    workers, shards = (use.service.controller.most_memory(kind) for kind in (AgentKind.WORKER, AgentKind.SHARD))
    return use.settings.readable, replace(use.settings.bounds, worker_bytes=workers, shard_bytes=shards)


async def _dry_run(use: Context, body: bytes, request: Request, caller: User, passes: Passes | None) -> str:
    size, most = len(body), use.settings.job_nodes
    found = await use.computed(request, size, check_submitted, body, *_bounds(use), most, low_priority=True)
    async with begun(use, caller, new_id(), found.spec, found.plan, keep=False) as plan:
        what = (
            plan,
            use.service.controller.waits_for(plan, caller.home, use.service.clock()),
            found.text,
            passes,
            use.settings.snapshots_location,
        )
        # Not behind others again: it has waited once.
        return await use.computed(request, size, dry_run_text, *what)


async def _submitted(use: Context, caller: User, key: str | None, digest: str) -> Job | None:
    """The job that this key has made before in the caller's project, as it is now."""
    if key is None:
        return None
    try:
        found = await use.service.threads.read(use.service.records.submitted, caller.home, key, digest)
    except KeyReusedError as error:
        detail = f"Idempotency-Key {key!r} was used before, with another body"
        raise ProblemError("idempotency-key-reused", detail) from error
    return None if found is None else await use.service.job(found.id)
