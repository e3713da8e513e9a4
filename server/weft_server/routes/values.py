"""`/v1/jobs/{id}/values`: parameters' values, of a finished job or of one that runs."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from weft_server.parameter_file import Selection
from weft_server.problems import ProblemError
from weft_server.refusals import RefusalError, WrongStateError
from weft_server.routes.context import Context, PathId, Use
from weft_server.strict_json import StrictRoute

router = APIRouter(prefix="/v1/jobs", tags=["values"], route_class=StrictRoute)

_FORM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "One safetensors document"}
}


@router.get("/{job}/values", responses=_FORM, response_class=Response)
async def values(job: PathId, use: Use, name: Annotated[list[str] | None, Query()] = None) -> Response:
    """A safetensors document of the parameters named, or of all; header `Weft-Step` tells the steps finished.

    Those of a running job are asked for now: the answer comes when the keeper has brought them.
    """
    plan = await use.service.plan(job)
    known = {each.name for each in plan.parameters}
    unknown = [each for each in name or [] if each not in known]
    if unknown:
        detail = f"job {job} has no parameter {', '.join(map(repr, unknown))}"
        raise ProblemError(HTTPStatus.NOT_FOUND, "unknown-parameter", detail)
    selection, step = await _selection(use, job, plan.steps, name)
    headers = {"Weft-Step": str(step), "Content-Length": str(selection.size)}
    return StreamingResponse(selection.pieces(), headers=headers, media_type="application/octet-stream")


async def _selection(use: Context, job: str, steps: int, names: Sequence[str] | None) -> tuple[Selection, int]:
    """(the values, steps finished): the final ones where there are any, else those of a running job."""
    final = await use.service.on_files(use.service.files.final, job)
    if final is None:
        try:
            path, step = await use.service.live_values(job, use.settings.values_deadline_s)
            return await use.service.on_files(Selection, path, names), step
        except (RefusalError, FileNotFoundError) as error:
            # It may have succeeded while we asked: then the live file is gone and the final one is there.
            final = await use.service.on_files(use.service.files.final, job)
            if final is None:
                state = (await use.service.job(job)).state
                raise WrongStateError(f"job {job} is {state}: it has no values") from error
    return await _opened(use, job, final, names), steps


async def _opened(use: Context, job: str, final: Path, names: Sequence[str] | None) -> Selection:
    try:
        return await use.service.on_files(Selection, final, names)
    except FileNotFoundError as error:
        raise WrongStateError(f"job {job} has failed meanwhile: it has no values") from error
