"""`/v1/models`: ONNX files are read into graphs that jobs are made of; see `weft.api.model`."""

from __future__ import annotations

import shutil
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from weft.api.model import ReadModel, ReadRequest
from weft_server.bodies import received
from weft_server.job_files import Upload
from weft_server.models.request import ANSWER, MODEL, VALUES, ModelOutcome, ModelRequest
from weft_server.problems import RETRY, ProblemError
from weft_server.routes.context import Context, Use
from weft_server.strict_json import StrictRoute

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=StrictRoute)

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "An ONNX file, or a zip archive of one and of the files that have its elements",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", status_code=HTTPStatus.CREATED, response_model=ReadModel, openapi_extra=_BODY)
async def read(
    request: Request,
    use: Use,
    *,
    options: Annotated[ReadRequest, Query()],
) -> Response:
    """Reads an ONNX file: its graph, with a loss where one is named, and its parameters' values, kept as an upload."""
    identifier = uuid4().hex
    folder = use.settings.models_folder / identifier
    on_files = use.service.threads.on_files
    try:
        start = partial(_started, folder)
        async with received(request, use.service.threads, start, _closed, use.settings.model_bytes) as written:
            await on_files(written.close)
            outcome = await _read(use, request, identifier, folder, options)
            if outcome.parameters:
                await on_files(_keep, use, folder, identifier)
    except BaseException:
        await on_files(_drop, folder)
        raise
    return FileResponse(
        folder / ANSWER,
        HTTPStatus.CREATED,
        media_type="application/json",
        background=BackgroundTask(on_files, _drop, folder),
    )


async def _read(use: Context, request: Request, identifier: str, folder: Path, options: ReadRequest) -> ModelOutcome:
    """Raises ProblemError with what is wrong with the file."""
    asked = ModelRequest(id=identifier, folder=str(folder), options=options, limits=use.settings.model_limits)
    async with use.models.turn(request.is_disconnected):
        outcome = await to_thread.run_sync(use.readers.read, asked)
    if outcome is None:
        detail = "the process that reads models was lost; try again"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "model-not-read", detail, headers=RETRY)
    if outcome.errors:
        detail = "; ".join(error.detail for error in outcome.errors)
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "model-refused", detail, errors=outcome.errors)
    return outcome


def _started(folder: Path) -> Upload:
    folder.mkdir(parents=True)
    return Upload(folder / MODEL, (folder / MODEL).open("wb"))


def _closed(upload: Upload) -> None:
    upload.file.close()


def _keep(use: Context, folder: Path, identifier: str) -> None:
    """The document of values is an upload then. Raises ParameterFileError, FullError."""
    values = folder / VALUES
    now = use.service.clock().at
    use.uploads.clean(now)
    use.uploads.keep(Upload(values, values.open("rb+")), identifier, now)


def _drop(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
