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
DOCUMENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {}}, "description": "One safetensors document"}
}


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
