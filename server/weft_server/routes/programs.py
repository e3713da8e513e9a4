"""`/v1/jobs/{id}/programs` and `/v1/schemas/graph`: what the converter made of a graph, and how a graph is written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from weft_graph.json_form import graph_schema
from weft_server.bodies import StrictRoute
from weft_server.problems import CHECKED, OF_JOB, sends
from weft_server.routes.context import PathId, Use
from weft_server.routes.documents import InPieces
from weft_server.submissions import passes_text, programs_text

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
    if format == "json":
        return InPieces(await use.service.programs(job), media_type="application/json")
    plan = await use.service.plan(job)
    if format == "text":
        text = await use.computed(request, len(plan.programs_json), programs_text, plan, low_priority=True)
    else:
        spec, full = await use.service.spec(job), format == "passes-full"
        text = await use.computed(request, len(spec), passes_text, spec, plan, full, low_priority=True)
    return InPieces(f"{text}\n", media_type="text/plain")


@router.get("/schemas/graph")
async def get_graph_schema() -> dict[str, Any]:
    """The JSON Schema of a graph's JSON form."""
    return graph_schema()
