"""What a route may use: the service, and the settings that are its business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Header, Path, Query, Request

from weft.api.base import ID_PATTERN
from weft.api.job import Job
from weft.api.problem import FieldError
from weft_server.access import Tokens
from weft_server.bodies import Incoming
from weft_server.credentials import Credentials
from weft_server.forks import Forks, LimitError
from weft_server.queues import BodyLimit, FairQueue
from weft_server.refusals import JobRefusedError, NoProcessError, UnknownError, WrongStateError, listed
from weft_server.service import Service
from weft_server.settings import Settings
from weft_server.storage.uploads import Uploads
from weft_server.users import ANYONE, USER, User, party_of

_T = TypeVar("_T")

SMALL_BYTES: Final = 64 << 10
"""Of a job's document: up to that it is checked on a thread, sooner than a process has begun."""


@dataclass(frozen=True, slots=True)
class Context:
    service: Service
    uploads: Uploads
    incoming: Incoming
    """Bodies that are written to the disk as they come."""
    settings: Settings
    checks: FairQueue
    """Of submitted jobs that are checked."""
    models: FairQueue
    """Of ONNX files that are read."""
    model_bodies: BodyLimit
    """Of ONNX files that come, wait and are read."""
    forks: Forks
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
        self, request: Request, nbytes: int, function: Callable[..., _T], *arguments: object, low_priority: bool = False
    ) -> _T:
        """What a function of `weft_server.submissions` returns for a job's document of so many bytes, once the caller
        has a slot. Raises FullError, CallerLeftError, JobRefusedError, NoProcessError, ForkFailedError."""
        has_left, limits = request.is_disconnected, self.settings.check_limits
        async with self.checks.slot(has_left, party_of(request), low_priority=low_priority):
            try:
                return await self.forks.run(limits, has_left, function, *arguments, is_small=nbytes <= SMALL_BYTES)
            except LimitError as error:
                if request.method == "GET":  # of a job that was taken: nothing is wrong with it
                    raise NoProcessError(f"reading the job {error}") from error
                pointer, hint = ("/data/source", "") if error.waits_for else ("/graph", ": a smaller graph takes less")
                raise JobRefusedError(
                    [FieldError(pointer=pointer, detail=f"checking the job {error}{hint}")]
                ) from error


# FastAPI calls a plain function on another thread, at each request.
async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def _user(request: Request) -> User:
    found: User = request.scope.get(USER, ANYONE)
    return found


Use = Annotated[Context, Depends(_context)]
Caller = Annotated[User, Depends(_user)]
"""Who calls; where no token is asked for, one who may do everything."""
PathId = Annotated[str, Path(pattern=ID_PATTERN)]
"""An id of the server's in a path: of a job, which is the name of its directory too, an agent or an allocation."""


IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255)]
"""By which a call that makes something may be repeated."""


OfProject = Annotated[str | None, Query(max_length=128, description="the project, where several have one of that name")]


def the_project(noun: str, identifier: str, projects: Sequence[str], asked: str | None) -> str:
    """Of the projects that have such a thing, the one that is meant. Raises UnknownError, WrongStateError where it is
    not said which."""
    meant = [each for each in projects if asked in {None, each}]
    if not meant:
        raise UnknownError(noun, identifier)
    if len(meant) > 1:
        told = f"the projects {listed(sorted(meant))} each have {noun} {identifier!r}: say which, with ?project=NAME"
        raise WrongStateError(told)
    return meant[0]


async def check_project(request: Request, use: Use, user: Caller) -> None:
    """Every route's own dependency: a job of another project is as one that is not there. Raises UnknownError."""
    job = request.path_params.get("job")
    if job is not None and user is not ANYONE:
        await use.job(user, job)
