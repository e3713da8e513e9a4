"""`/healthz` and `/readyz`: for whoever restarts processes and sends them traffic."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from weft.agent.machine import full_disk
from weft_server.bodies import KEPT_FREE_BYTES
from weft_server.problems import ProblemError, sends
from weft_server.routes.context import Use

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", openapi_extra=sends("not-ready"))
async def readyz(use: Use) -> dict[str, str]:
    """The database answers, takes what is written, there is room for results, and time is being watched."""
    try:
        await use.service.threads.read(use.service.records.count)
        is_moved = await use.service.threads.read(lambda: use.service.records.is_moved)
    except SQLAlchemyError as error:
        detail = "the database does not answer"
        raise ProblemError("not-ready", detail) from error
    if is_moved:
        detail = "the database's file was moved or replaced; what is written now is lost"
        raise ProblemError("not-ready", detail)
    full = await use.service.threads.read(full_disk, use.settings.directory, KEPT_FREE_BYTES)
    if full is not None:
        raise ProblemError("not-ready", full)
    if use.service.unready is not None:
        raise ProblemError("not-ready", use.service.unready)
    return {"status": "ready"}
