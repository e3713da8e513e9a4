"""Safetensors documents as answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from weft_server.refusals import NotKeeperError
from weft_server.routes.context import Context
from weft_server.storage.parameter_file import Selection

MEDIA_TYPE = "application/octet-stream"
SENT_BYTES = 1 << 18
"""Of a large answer, at once."""
_CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
BODY: dict[str, Any] = {
    "requestBody": {"required": True, "description": "One safetensors document", "content": _CONTENT}
}
"""The `openapi_extra` of a route that takes a document."""


class InPieces(Response):
    """An answer that may be large, sent piece by piece: while one reader's connection is full, others are served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytes(self.body)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(body), SENT_BYTES):
            await send({"type": "http.response.body", "body": body[at : at + SENT_BYTES], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def document_answer(header: str | None = None, meaning: str = "") -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers with a document, and with a number in a header."""
    headers = {header: {"description": meaning, "required": True, "schema": {"type": "integer"}}} if header else {}
    return {200: {"content": _CONTENT, "description": "One safetensors document", "headers": headers}}


def answer(selection: Selection, **headers: str) -> StreamingResponse:
    """The document, streamed from its file."""
    length = {"Content-Length": str(selection.size)}
    return StreamingResponse(selection.pieces(), headers={**headers, **length}, media_type=MEDIA_TYPE)


async def document(use: Context, path: Path, names: Sequence[str]) -> StreamingResponse:
    """Tensors of a file that the controller knows of. Raises NotKeeperError where it has gone meanwhile."""
    try:
        return answer(await use.service.threads.on_files(Selection, path, names))
    except FileNotFoundError as error:
        raise NotKeeperError("the values are not wanted any more") from error
