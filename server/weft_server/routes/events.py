"""`/v1/jobs/{id}/events` and `/trace`: the job's log, as a stream that can be resumed or as pages, and what its
processes did in some steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.sse import EventSourceResponse, format_sse_event

from weft.api.event import Event, EventPage, StateChanged
from weft.api.trace import JobTrace
from weft_server.bodies import StrictRoute
from weft_server.notify import notified
from weft_server.problems import OF_JOB, sends
from weft_server.routes.context import Caller, Context, PathId, Use
from weft_server.service import job_topic
from weft_server.users import User

router = APIRouter(prefix="/v1/jobs", tags=["events"], route_class=StrictRoute)

KEEP_ALIVE_S = 15.0
"""Between comments on a stream that has nothing to tell: below the idle limits of common proxies."""
PAGE = 200
"""Events read at a time; all that is held for a client that reads slowly."""

_FORMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}, "application/json": {}}, "model": EventPage}
}


@router.get("/{job}/events", responses=_FORMS, response_class=Response, openapi_extra=sends(*OF_JOB))
async def get_events(
    job: PathId,
    use: Use,
    caller: Caller,
    *,
    after: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
    tail: Annotated[int | None, Query(ge=0, le=1 << 62, description="of those, only the newest so far")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="of a page")] = PAGE,
    format: Annotated[Literal["sse", "json"], Query()] = "sse",  # noqa: A002  # the query's own word
    last_event_id: Annotated[int | None, Header(ge=0, le=1 << 62)] = None,
) -> Response:
    """Events after `Last-Event-ID` or `after`, of which `tail` leaves out all but so many of the newest. The stream
    ends behind the event that ends the job, and soon after the caller's token was removed."""
    state = (await use.service.recorded(job)).state
    newest = last_event_id if last_event_id is not None else after or 0
    if tail is not None:
        newest = max(newest, await use.service.threads.read(use.service.records.newest, job) - tail)
    if format == "sse":
        return EventSourceResponse(_stream(use, caller, job, newest), headers={"Cache-Control": "no-store"})
    found = await use.service.threads.read(use.service.records.events, job, newest, limit)
    page = EventPage(events=found, after=found[-1].seq if found else newest, ended=state.is_terminal)
    return Response(page.model_dump_json(), media_type="application/json")


@router.get("/{job}/trace", openapi_extra=sends(*OF_JOB, "wrong-state"))
async def get_trace(job: PathId, use: Use) -> JobTrace:
    """What workers and shards did in the job's traced steps, as spans of time."""
    return await use.service.trace(job)


async def _stream(use: Context, caller: User, job: str, newest: int) -> AsyncIterator[bytes]:
    service = use.service
    # A first comment brings the headers to the client, also when nothing has happened yet.
    yield format_sse_event(comment=f"events of {job}")
    while not service.closing and (use.tokens is None or use.tokens.knows(caller)):
        changed = service.notifier.subscribe(job_topic(job))
        ended = (await service.recorded(job)).state.is_terminal
        page = await service.threads.read(service.records.events, job, newest, PAGE)
        if page:
            newest = page[-1].seq
            # At once: a stream that yields again and again without a pause never learns that its client has gone.
            yield b"".join(map(_frame, page))
            if isinstance(page[-1].body, StateChanged) and page[-1].body.state.is_terminal:
                return
        if not page and ended:
            return
        if not page and not await notified(changed, KEEP_ALIVE_S):
            yield format_sse_event(comment="still here")


def _frame(event: Event) -> bytes:
    return format_sse_event(data_str=event.model_dump_json(), event=event.body.kind, id=str(event.seq))
