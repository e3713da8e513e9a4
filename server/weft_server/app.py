"""Puts the server together: records, service, gates and routes make one ASGI application."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from sqlalchemy.exc import DatabaseError

from weft.agent.private import make_directory
from weft_server import pages
from weft_server.access import TokenGate, Tokens
from weft_server.bodies import Incoming
from weft_server.connections import most_connections
from weft_server.control.clock import Clock, ProcessClock
from weft_server.credentials import Credentials
from weft_server.forks import Forks
from weft_server.gate import (
    LOOPBACK_NAMES,
    CallGate,
    Gate,
    SubmissionGate,
    body_check,
    check_origin,
    host_check,
    pace_check,
)
from weft_server.openapi import ROUTERS
from weft_server.problems import add_handlers
from weft_server.queues import BodyLimit, FairQueue
from weft_server.routes.context import Context, check_project
from weft_server.service import Service
from weft_server.settings import Settings
from weft_server.storage.database import DatabaseRefusedError, open_database
from weft_server.storage.job_files import JobFiles, Reservations
from weft_server.storage.records import Records
from weft_server.storage.uploads import Uploads

SMALL_BYTES = 64 << 10
"""Largest body of users' calls that bring no job, values or model."""
OWN = ("weft.db", "weft.db-wal", "weft.db-shm", "jobs", "deleted", "uploads", "models", "snapshots")
"""What a server has in its directory."""


def create_app(settings: Settings, *, clock: Clock | None = None) -> FastAPI:
    """The application. Its lifespan opens the database, which makes `settings.directory` where it is lacking."""

    clock = clock or ProcessClock()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        make_directory(settings.directory, OWN)
        engine = open_database(settings.directory / "weft.db")
        service = Service(
            Records(engine), JobFiles(settings.directory), settings.limits, clock, encrypts=settings.encrypts
        )
        reservations = Reservations()
        brought = Uploads(settings.directory, settings.upload_hours, settings.uploads_bytes, reservations)
        brought.clean(clock().at, at_start=True)
        forks = Forks("weft_server.submissions")
        models = FairQueue(settings.concurrent_models, settings.waiting_models, "model")
        most_models = settings.concurrent_models + settings.waiting_models
        model_bodies = BodyLimit("model", settings.models_bytes, most=most_models)
        shutil.rmtree(settings.models_folder, ignore_errors=True)  # what an earlier process left
        if credentials is not None and known is not None:
            credentials.load()
            known.load(service.records.users())
        incoming = Incoming(service.threads, reservations)
        app.state.context = Context(
            service, brought, incoming, settings, checks, models, model_bodies, forks, credentials, known
        )
        try:
            await _started(service, app, settings)
            yield
        finally:
            forks.close()
            await service.stop()
            engine.dispose()

    checks = FairQueue(settings.concurrent_checks, settings.waiting_checks)
    credentials = None if settings.token is None else Credentials(settings.directory)
    known = None if settings.token is None else Tokens(settings.token.get_secret_value())
    # FastAPI's own pages load scripts from other hosts, and its document knows no problems: `pages` has ours.
    app = FastAPI(lifespan=lifespan, redirect_slashes=False, openapi_url=None)
    for router in (*ROUTERS["users"], *ROUTERS["agents"], pages.router):
        app.include_router(router, dependencies=[Depends(check_project)])
    add_handlers(app)
    _add_gates(app, settings, checks, credentials, known)
    return app


async def _started(service: Service, app: FastAPI, settings: Settings) -> None:
    """Starts it. Raises DatabaseRefusedError, also as `app.state.refused`: of what a lifespan raises uvicorn logs the
    traceback alone."""
    try:
        await service.start()
    except DatabaseError as error:
        refused = DatabaseRefusedError(f"{settings.directory / 'weft.db'} cannot be used: {error.orig}")
        app.state.refused = refused
        raise refused from error


def _add_gates(
    app: FastAPI, settings: Settings, checks: FairQueue, credentials: Credentials | None, known: Tokens | None
) -> None:
    """The one added last is passed first: Host, then Origin, then token, then the body's pace and size, then whether
    there is room for it."""
    submitted = BodyLimit("check", settings.submitted_bytes)
    app.add_middleware(SubmissionGate, bodies=submitted, checks=checks, most_bytes=settings.job_bytes)
    app.add_middleware(Gate, check=body_check(_body_limit(settings)))
    app.add_middleware(Gate, check=pace_check(settings.body_grace_s))
    app.add_middleware(CallGate, connections=most_connections(settings.most_connections))
    if settings.token is not None and credentials is not None and known is not None:
        agent_token = (settings.agent_token or settings.token).get_secret_value()
        app.add_middleware(TokenGate, tokens=known, agent_token=agent_token, credentials=credentials)
    app.add_middleware(Gate, check=check_origin)
    if settings.is_loopback:
        app.add_middleware(Gate, check=host_check(LOOPBACK_NAMES | {settings.host}))


def _body_limit(settings: Settings) -> Callable[[str, str], int | None]:
    def limit(method: str, path: str) -> int | None:
        if method == "POST" and path == "/v1/jobs":
            return settings.job_bytes
        if method == "PUT" and path.endswith(("/parameters", "/values")):
            return None  # the route knows what the job's parameters take
        if method == "POST" and path == "/v1/uploads":
            return settings.upload_bytes
        if method == "POST" and path == "/v1/models":
            return settings.model_bytes
        of_agents = path.startswith(("/v1/agents", "/v1/allocations"))
        return settings.report_bytes if of_agents else min(SMALL_BYTES, settings.report_bytes)

    return limit
