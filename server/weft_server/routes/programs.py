"""`/v1/jobs/{id}/programs` and `/v1/schemas/graph`: what the converter made of a graph, and how a graph is written."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response

from weft_graph.json_form import graph_schema
from weft_graph.program_json import programs_from_json
from weft_server.bodies import StrictRoute
from weft_server.planning.dry_run import told_passes, told_programs
from weft_server.planning.turns import checked
from weft_server.problems import CHECKED, OF_JOB, sends
from weft_server.routes.context import PathId, Use, user_of

router = APIRouter(prefix="/v1", tags=["programs"], route_class=StrictRoute)

_FORMS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/plain": {"schema": {"type": "string"}},
        }
    }
}


@router.get("/jobs/{job}/programs", responses=_FORMS, response_class=Response, openapi_extra=sends(*OF_JOB, *CHECKED))
async def get_programs(
    job: PathId,
    use: Use,
    request: Request,
    format: Annotated[Literal["json", "text", "passes", "passes-full"], Query()] = "json",  # noqa: A002  # the query's own word
) -> Response:
    """The programs that workers run: as they get them, or as text for people; or what each pass of the converter did
    to the job's graph."""
    plan = await use.service.plan(job)
    if format == "json":
        return Response(plan.programs_json, media_type="application/json")
    if format == "text":
        text = await to_thread.run_sync(lambda: told_programs(plan, programs_from_json(plan.programs)))
    else:
        spec = await use.service.spec(job)
        # The graph is converted again, which takes as long as a check does.
        async with use.checks.turn(request.is_disconnected, user=user_of(request)):
            tell = partial(told_passes, spec, plan, full=format == "passes-full")
            text = await checked(use.settings.check_seconds, request.is_disconnected, tell)
    return PlainTextResponse(f"{text}\n")


@router.get("/schemas/graph")
async def get_graph_schema() -> dict[str, Any]:
    """The JSON Schema of a graph's JSON form."""
    return graph_schema()
