"""`/v1/uploads`: documents that jobs begin with; see `weft.api.values`."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from uuid import uuid4

from fastapi import APIRouter, Request

from weft.api.values import Uploaded, UploadList, upload_id
from weft_server.bodies import StrictRoute
from weft_server.problems import DOCUMENT, sends
from weft_server.routes.context import Caller, IdempotencyKey, OfProject, PathId, Use, the_project
from weft_server.routes.documents import BODY
from weft_server.users import party_of

router = APIRouter(prefix="/v1/uploads", tags=["values"], route_class=StrictRoute)


@router.post("", status_code=HTTPStatus.CREATED, openapi_extra=BODY | sends(*DOCUMENT, "too-many-uploads"))
async def create_upload(request: Request, use: Use, caller: Caller, idempotency_key: IdempotencyKey = None) -> Uploaded:
    """Keeps a safetensors document for some hours, for jobs' `init_from`. It is replaced by the same document with the
    same `Idempotency-Key`."""
    service, uploads, identifier = use.service, use.uploads, uuid4().hex
    limit, party = use.settings.upload_bytes, party_of(request)
    start = partial(uploads.start, identifier, service.clock().at, caller.home, party)
    async with use.incoming.received(request, start, limit, party=party) as written:
        if idempotency_key is not None:
            await service.threads.on_files(written.close)
            identifier = await service.threads.on_files(upload_id, idempotency_key, written.path)
        return await service.threads.on_files(uploads.keep, written, identifier, service.clock().at, caller.home)


@router.get("")
async def list_uploads(use: Use, caller: Caller) -> UploadList:
    """Documents that are kept, oldest first: for whoever has to make room."""
    return await use.service.threads.on_files(use.uploads.describe, use.service.clock().at, caller.project)


@router.delete("/{upload}", status_code=HTTPStatus.NO_CONTENT, openapi_extra=sends("unknown-upload", "wrong-state"))
async def delete_upload(upload: PathId, use: Use, caller: Caller, project: OfProject = None) -> None:
    """The document is not needed any more. Jobs that were submitted with it keep their own copy."""
    on_files = use.service.threads.on_files
    found = [each for each in await on_files(use.uploads.projects, upload) if caller.sees(each)]
    await on_files(use.uploads.delete, upload, the_project("upload", upload, found, project))
