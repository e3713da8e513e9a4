"""What a route may use: the service, and the settings that are its business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Path, Request

from weft.api.job import Job
from weft_server.access import Tokens
from weft_server.bodies import Incoming
from weft_server.credentials import Credentials
from weft_server.onnx_import.pool import ModelReaders
from weft_server.planning.apart import LARGE_BYTES, Apart
from weft_server.planning.turns import Places, Turns, checked
from weft_server.refusals import UnknownError
from weft_server.service import Service
from weft_server.settings import Settings
from weft_server.storage.uploads import Uploads
from weft_server.users import ANYONE, USER, User, user_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Context:
    service: Service
    uploads: Uploads
    incoming: Incoming
    """Bodies that are written to the disk as they come."""
    settings: Settings
    checks: Turns
    """Whose submitted job is checked next."""
    models: Turns
    """Whose ONNX file is read next."""
    places: Places
    """Whose ONNX file may come."""
    readers: ModelReaders
    apart: Apart
    """Where what is large is computed."""
    credentials: Credentials | None
    """None where no token is asked for."""
    tokens: Tokens | None
    """The same."""

    async def job(self, user: User, job: str) -> Job:
        """The job, where the user sees its project. Raises UnknownError."""
        found = await self.service.job(job)
        if not user.sees(found.project):
            raise UnknownError("job", job)
        return found

    async def computed(
        self, request: Request, nbytes: int, function: Callable[..., _T], *arguments: object, behind: bool = False
    ) -> _T:
        """What the function returns, which takes its time with a document of so many bytes: in the caller's turn, and
        apart where that is much. Raises FullError, CallerLeftError, JobRefusedError."""
        apart = self.apart if nbytes > LARGE_BYTES else None
        async with self.checks.turn(request.is_disconnected, user=user_of(request), behind=behind):
            seconds = self.settings.check_seconds
            return await checked(seconds, request.is_disconnected, function, *arguments, apart=apart)


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def _user(request: Request) -> User:
    found: User = request.scope.get(USER, ANYONE)
    return found


Use = Annotated[Context, Depends(_context)]
Caller = Annotated[User, Depends(_user)]
"""Who calls; where no token is asked for, one who may do everything."""
PathId = Annotated[str, Path(pattern=r"^[A-Za-z0-9\-]{1,64}$")]
"""An id of the server's in a path: of a job, which is the name of its directory too, an agent or an allocation."""


async def check_project(request: Request, use: Use, user: Caller) -> None:
    """Every route's own dependency: a job of another project is as one that is not there. Raises UnknownError."""
    job = request.path_params.get("job")
    if job is not None and user is not ANYONE:
        await use.job(user, job)
