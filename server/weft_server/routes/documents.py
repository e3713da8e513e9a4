"""Safetensors documents as answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi.responses import StreamingResponse

from weft_server.refusals import NotKeeperError
from weft_server.routes.context import Context
from weft_server.storage.parameter_file import Selection

MEDIA_TYPE = "application/octet-stream"
_CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
BODY: dict[str, Any] = {
    "requestBody": {"required": True, "description": "One safetensors document", "content": _CONTENT}
}
"""The `openapi_extra` of a route that takes a document."""


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
