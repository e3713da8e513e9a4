"""`/v1/allocations`: facts and parameters that agents bring, values that they fetch; see `weft.api.agent`."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Path, Query, Request, Response

from weft.api.agent import Report
from weft.api.base import Count
from weft_server.bodies import StrictRoute
from weft_server.problems import DOCUMENT, sends
from weft_server.routes.context import PathId, Use
from weft_server.routes.documents import BODY, InPieces, document, document_answer
from weft_server.storage.parameter_file import largest_document, state_parameters

router = APIRouter(prefix="/v1/allocations", tags=["agents"], route_class=StrictRoute)

Term = Annotated[Count, Query()]
GIVES = ("unknown-allocation", "stale-term", "not-wanted")
"""What calls about an allocation's values send."""


@router.post(
    "/{allocation}/reports",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra=sends("unknown-allocation", "stale-term", "illegal-report", "records-unavailable"),
)
async def report(allocation: PathId, report: Report, use: Use) -> None:
    """Facts about the allocation. A repeated report is accepted and changes nothing."""
    await use.service.report(allocation, report)


@router.put(
    "/{allocation}/parameters",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra=BODY | sends(*GIVES, *DOCUMENT, "wrong-state", "records-unavailable"),
)
async def bring_parameters(
    allocation: PathId,
    request: Request,
    use: Use,
    *,
    term: Term,
    step: Annotated[Count, Query()],
    final: Annotated[bool, Query()],
) -> None:
    """The parameters after `step` steps: one safetensors document of exactly the job's parameters.

    Where the job keeps its optimizer's state, `weft.state/NAME/KEY` of every trainable parameter too.
    """
    service, files = use.service, use.service.files
    job, plan = service.values.check(allocation, term, step, final)
    arrays = plan.kept_arrays
    limit = largest_document([*plan.parameters, *state_parameters(plan.parameters, arrays)])
    start = partial(files.start, job, uuid4().hex)
    async with use.incoming.received(request, start, limit, party=None) as upload:
        await service.threads.on_files(files.check, upload, plan.parameters, arrays, final)
        place = partial(files.put, upload, job, step, final)
        await service.values.keep(allocation, term, step, final, place)


@router.get(
    "/{allocation}/programs/{sha256}",
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}},
    response_class=Response,
    openapi_extra=sends(*GIVES),
)
async def get_allocated_programs(
    allocation: PathId, sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")], use: Use, term: Term
) -> Response:
    """The programs of the job, in the JSON that has this hash."""
    return InPieces(use.service.allocated_programs(allocation, term, sha256), media_type="application/json")


@router.get("/{allocation}/given", responses=document_answer(), response_class=Response, openapi_extra=sends(*GIVES))
async def get_first_values(allocation: PathId, use: Use, term: Term) -> Response:
    """The first values that the keeper sets before step 0."""
    return await document(use, *use.service.values.first_values(allocation, term))


@router.get(
    "/{allocation}/sets/{number}", responses=document_answer(), response_class=Response, openapi_extra=sends(*GIVES)
)
async def get_set(allocation: PathId, number: Annotated[Count, Path()], use: Use, term: Term) -> Response:
    """Values that the keeper is to set at the next step that no worker has begun."""
    return await document(use, *use.service.values.open_set(allocation, term, number))
