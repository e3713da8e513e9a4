"""`/v1/jobs/{id}/values`: parameters' values, of a finished job or of one that runs; see `weft.api.values`."""

from __future__ import annotations

from functools import partial
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Query, Request, Response

from weft.api.values import STEP_HEADER, ValuesSet
from weft_graph.spelling import did_you_mean
from weft_server.bodies import StrictRoute
from weft_server.problems import DOCUMENT, OF_JOB, ProblemError, sends
from weft_server.refusals import NotWrittenError, RefusalError, WrongStateError, listed
from weft_server.routes.context import Context, PathId, Use
from weft_server.routes.documents import BODY, answer, document_answer
from weft_server.storage.parameter_file import Selection, largest_document
from weft_server.users import party_of

router = APIRouter(prefix="/v1/jobs", tags=["values"], route_class=StrictRoute)


@router.get(
    "/{job}/values",
    responses=document_answer(STEP_HEADER, "How many steps were finished when the values held"),
    response_class=Response,
    openapi_extra=sends(*OF_JOB, "unknown-parameter", "wrong-state", "values-deleted", "keeper-silent"),
)
async def get_values(
    job: PathId,
    use: Use,
    name: Annotated[list[str] | None, Query()] = None,
    *,
    state: Annotated[bool, Query(description="the optimizer's state too, where the job keeps it")] = False,
) -> Response:
    """A safetensors document of the parameters named, or of all; header `Weft-Step` tells the steps finished.

    Those of a running job are asked for now: the answer comes when the keeper has brought them.
    """
    plan = await use.service.plan(job)
    known = {each.name for each in plan.parameters}
    unknown = [each for each in name or [] if each not in known]
    if unknown:
        near = did_you_mean(unknown[0], known)
        detail = f"job {job} has no parameter {listed(unknown)}; it has {listed(sorted(known))}{near}"
        raise ProblemError("unknown-parameter", detail)
    if state and not (plan.keep_state or plan.kept_arrays):
        raise WrongStateError(
            f"job {job} was submitted with neither keep_state nor ema, so it keeps no optimizer state and no averages: "
            "submit it with one of them"
        )
    found = await use.service.job(job)
    steps = found.progress.step if found.state.is_terminal else plan.steps
    selection, step = await _selection(use, job, steps, partial(Selection, names=name, state=state))
    return answer(selection, **{STEP_HEADER: str(step)})


@router.put(
    "/{job}/values",
    openapi_extra=BODY | sends(*OF_JOB, *DOCUMENT, "wrong-state", "values-not-set", "too-many-sets", "keeper-silent"),
)
async def set_values(job: PathId, request: Request, use: Use) -> ValuesSet:
    """Sets some or all parameters of a job that has not ended: a safetensors document of their names and shapes.

    The answer comes once the keeper of a running job has set them, and says after which step.
    """
    service, files = use.service, use.service.files
    plan = await service.plan(job)
    service.values.check_set(job)
    start = partial(files.start, job, uuid4().hex)
    limit = largest_document(plan.parameters)
    async with use.incoming.received(request, start, limit, party=party_of(request)) as upload:
        names = await service.threads.on_files(files.check_part, upload, plan.parameters)
        return await service.values.set(job, upload, names, use.settings.values_deadline_s)


async def _selection(use: Context, job: str, steps: int, opened: partial[Selection]) -> tuple[Selection, int]:
    """(the values, steps finished): the final ones where there are any, else those of a running job."""
    on_files = use.service.threads.on_files
    final = await use.service.final(job)
    if final is None:
        try:
            path, step = await use.service.values.live(job, use.settings.values_deadline_s)
            return await on_files(opened, path), step
        except NotWrittenError:
            raise
        except (RefusalError, FileNotFoundError) as error:
            # It may have succeeded while we asked: then the live file is gone and the final one is there.
            final = await use.service.final(job)
            if final is None:
                state = (await use.service.job(job)).state
                raise WrongStateError(f"job {job} {state.told}, so it has no values") from error
    try:
        return await on_files(opened, final), steps
    except FileNotFoundError as error:
        raise WrongStateError(f"job {job} has failed meanwhile: it has no values") from error
