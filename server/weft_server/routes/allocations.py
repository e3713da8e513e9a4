"""`/v1/allocations`: facts and parameters that agents bring; see `weft.api.agent`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Query, Request

from weft.api.agent import Report
from weft.api.base import Count
from weft_server.gate import too_large
from weft_server.job_files import JobFiles, Upload
from weft_server.parameter_file import PIECE_BYTES, ParameterFileError, largest_document
from weft_server.problems import ProblemError
from weft_server.routes.context import PathId, Use
from weft_server.service import Service
from weft_server.strict_json import ReportRoute

router = APIRouter(prefix="/v1/allocations", tags=["agents"], route_class=ReportRoute)


@router.post("/{allocation}/reports", status_code=HTTPStatus.NO_CONTENT)
async def report(allocation: PathId, report: Report, use: Use) -> None:
    """Facts about the allocation. A repeated report is accepted and changes nothing."""
    await use.service.report(allocation, report)


@router.put("/{allocation}/parameters", status_code=HTTPStatus.NO_CONTENT)
async def parameters(
    allocation: PathId,
    request: Request,
    use: Use,
    *,
    term: Annotated[Count, Query()],
    step: Annotated[Count, Query()],
    final: Annotated[bool, Query()],
) -> None:
    """The parameters after `step` steps: one safetensors document of exactly the job's parameters."""
    service, files = use.service, use.service.files
    job, plan = service.check_parameters(allocation, term, step, final)
    limit = largest_document(plan.parameters)
    if int(request.headers.get("content-length", 0)) > limit:
        raise too_large(limit, f"{request.headers['content-length']} bytes")
    upload: Upload | None = None
    try:
        upload = await service.on_files(files.start, job, uuid4().hex)
        await _write(service, upload, request.stream(), limit)
        await service.on_files(files.check, upload, plan.parameters)
        place = partial(files.put, upload, job, step, final)
        await service.keep(allocation, term, step, final, place)
    except ParameterFileError as error:
        detail = f"the parameters of {allocation} are not taken: {error}"
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "wrong-parameters", detail) from error
    except OSError as error:
        detail = f"the parameters of {allocation} cannot be kept: {error.strerror or error}"
        raise ProblemError(HTTPStatus.INSUFFICIENT_STORAGE, "not-stored", detail) from error
    finally:
        if upload is not None:
            await service.on_files(JobFiles.discard, files, upload)


async def _write(service: Service, upload: Upload, stream: AsyncIterator[bytes], limit: int) -> None:
    """Writes what comes in pieces of about a megabyte, each on a thread."""
    waiting: list[bytes] = []
    held = total = 0
    async for piece in stream:
        waiting.append(piece)
        held += len(piece)
        total += len(piece)
        if total > limit:
            raise too_large(limit, f"more than {limit} bytes")
        if held >= PIECE_BYTES:
            await service.on_files(upload.file.writelines, waiting)
            waiting, held = [], 0
    await service.on_files(upload.file.writelines, waiting)
