"""What a route may use: the service, and the settings that are its business."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request

from weft_server.credentials import Credentials
from weft_server.onnx_import.places import ModelPlaces
from weft_server.onnx_import.pool import ModelReaders
from weft_server.planning.turns import Turns
from weft_server.service import Service
from weft_server.settings import Settings
from weft_server.storage.uploads import Uploads


@dataclass(frozen=True, slots=True)
class Context:
    service: Service
    uploads: Uploads
    settings: Settings
    checks: Turns
    """Whose submitted job is checked next."""
    models: Turns
    """Whose ONNX file is read next."""
    places: ModelPlaces
    """Whose ONNX file may come."""
    readers: ModelReaders
    credentials: Credentials | None
    """None where no token is asked for."""


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Use = Annotated[Context, Depends(_context)]
PathId = Annotated[str, Path(pattern=r"^[A-Za-z0-9\-]{1,64}$")]
"""An id of the server's in a path: of a job, which is the name of its directory too, an agent or an allocation."""


def user_of(request: Request) -> str:
    """Who takes turns with others: whoever comes from one address with one token."""
    token = hashlib.sha256(request.headers.get("authorization", "").encode()).hexdigest()
    return f"{request.client.host if request.client else ''} {token[:16]}"
