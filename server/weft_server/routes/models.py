"""`/v1/models`: ONNX files are read into graphs that jobs are made of; see `weft.api.model`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from weft.api.model import ReadModel, ReadRequest
from weft.api.problem import FieldError
from weft_server.bodies import StrictRoute
from weft_server.forks import LimitError
from weft_server.gate import declared_bytes, too_late
from weft_server.onnx_import.request import ANSWER, MODEL, PARTS, VALUES, ModelOutcome, ModelRequest
from weft_server.problems import DOCUMENT, ProblemError, sends
from weft_server.routes.context import Caller, Context, Use
from weft_server.storage.job_files import Upload
from weft_server.submissions import read_onnx
from weft_server.users import party_of

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=StrictRoute)

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "An ONNX file, or a zip archive of one and of the files that have its elements",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    response_model=ReadModel,
    openapi_extra=_BODY
    | sends(*DOCUMENT, "model-refused", "no-process", "too-many-models", "too-many-uploads", "caller-left"),
)
async def read_model(
    request: Request,
    use: Use,
    caller: Caller,
    *,
    options: Annotated[ReadRequest, Query()],
) -> Response:
    """Reads an ONNX file: its graph, with a loss where one is named, and its parameters' values, kept as an upload."""
    identifier = uuid4().hex
    folder = use.settings.models_folder / identifier
    on_files = use.service.threads.on_files
    nbytes, party = declared_bytes(request.headers, use.settings.model_bytes), party_of(request)
    if not use.model_bodies.has_room(nbytes, party):
        await use.models.drop_disconnected()
    with use.model_bodies.reserve(nbytes, party):
        try:
            async with _arrived(use, request, folder) as written:
                await on_files(written.close)
                outcome = await _read(use, request, identifier, folder, options)
                if outcome.parameters:
                    await on_files(_keep, use, folder, identifier, caller.home)
                await on_files(_drop_what_was_sent, folder)
        except BaseException:
            await on_files(_drop, folder)
            raise
    return FileResponse(
        folder / ANSWER,
        HTTPStatus.CREATED,
        media_type="application/json",
        background=BackgroundTask(on_files, _drop, folder),
    )


@asynccontextmanager
async def _arrived(use: Context, request: Request, folder: Path) -> AsyncIterator[Upload]:
    """The body in its file. Raises ProblemError as `Incoming.received` does, and where it does not come in time."""
    settings = use.settings
    start, limit = partial(_started, folder), settings.model_bytes
    whole = use.incoming.received(request, start, limit, party=party_of(request))
    async with AsyncExitStack() as held:
        try:
            async with asyncio.timeout(settings.model_body_s):
                written = await held.enter_async_context(whole)
        except TimeoutError:
            raise too_late(settings.model_body_s) from None
        yield written


async def _read(use: Context, request: Request, identifier: str, folder: Path, options: ReadRequest) -> ModelOutcome:
    """Raises ProblemError with what is wrong with the file."""
    has_left, limits, most_bytes = request.is_disconnected, use.settings.model_limits, use.settings.model_file_bytes
    asked = ModelRequest(id=identifier, folder=str(folder), options=options, most_bytes=most_bytes)
    async with use.models.slot(has_left, party_of(request)):
        try:
            outcome = await use.forks.run(limits, has_left, read_onnx, asked)
        except LimitError as error:
            outcome = ModelOutcome(errors=[FieldError(pointer="", detail=f"reading the model {error}")])
    if outcome.errors:
        detail = "; ".join(error.detail for error in outcome.errors)
        raise ProblemError("model-refused", detail, errors=outcome.errors)
    return outcome


def _started(folder: Path) -> Upload:
    folder.mkdir(parents=True)
    return Upload(folder / MODEL, (folder / MODEL).open("wb"))


def _keep(use: Context, folder: Path, identifier: str, project: str) -> None:
    """The document of values is an upload then. Raises ParameterFileError, FullError."""
    values = folder / VALUES
    now = use.service.clock().at
    use.uploads.clean(now)
    use.uploads.keep(Upload(values, values.open("rb+")), identifier, now, project)


def _drop_what_was_sent(folder: Path) -> None:
    """What the answer does not need: it may take its time to go out."""
    (folder / MODEL).unlink(missing_ok=True)
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _drop(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
