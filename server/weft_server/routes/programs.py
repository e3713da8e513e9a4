"""`/v1/jobs/{id}/programs` and `/v1/schemas/graph`: what the converter made of a graph, and how a graph is written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from weft_graph.json_form import graph_schema
from weft_graph.program_json import programs_from_json
from weft_graph.program_text import programs_text
from weft_server.routes.context import PathId, Use
from weft_server.strict_json import StrictRoute

router = APIRouter(prefix="/v1", tags=["programs"], route_class=StrictRoute)

_FORMS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/plain": {}}}}


@router.get("/jobs/{job}/programs", responses=_FORMS, response_class=Response)
async def programs(
    job: PathId,
    use: Use,
    format: Annotated[Literal["json", "text"], Query()] = "json",  # noqa: A002  # the query's own word
) -> Response:
    """The programs that workers run: as they get them, or as text for people."""
    document = (await use.service.plan(job)).programs
    if format == "json":
        return JSONResponse(document)
    return PlainTextResponse(programs_text(programs_from_json(document)) + "\n")


@router.get("/schemas/graph")
async def schema() -> dict[str, Any]:
    """The JSON Schema of a graph's JSON form."""
    return graph_schema()
