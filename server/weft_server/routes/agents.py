"""`/v1/agents`: workers and shards register, heartbeat and leave, and users list them; see `weft.api.agent`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from weft.api.agent import MINIMAL, AgentList, Heartbeat, Orders, Registered, Registration
from weft.api.token import ALL_PROJECTS
from weft_server.bodies import StrictRoute
from weft_server.problems import sends
from weft_server.routes.context import Caller, PathId, Use

router = APIRouter(prefix="/v1/agents", tags=["agents"], route_class=StrictRoute)
listing = APIRouter(prefix="/v1/agents", tags=["cluster"], route_class=StrictRoute)
"""What users see of agents."""


@listing.get("", openapi_extra=sends("records-unavailable"))
async def list_agents(use: Use, caller: Caller) -> AgentList:
    """Agents that live, and those lost lately, with the jobs that the caller sees."""
    agents = use.service.controller.agents(use.service.clock())
    if caller.project == ALL_PROJECTS:
        return AgentList(agents=agents)
    held = sorted({job for agent in agents for job in agent.jobs})
    projects = await use.service.threads.read(use.service.records.projects, held)
    shown = {job for job, project in projects.items() if caller.sees(project)}
    return AgentList(
        agents=[agent.model_copy(update={"jobs": [job for job in agent.jobs if job in shown]}) for agent in agents]
    )


@router.post("", status_code=HTTPStatus.CREATED, openapi_extra=sends("too-many-agents", "records-unavailable"))
async def register(registration: Registration, use: Use) -> Registered:
    """A new agent. The same process registered again replaces its earlier registration."""
    registered = await use.service.register(registration)
    return registered if use.credentials is None else use.credentials.registered(registered)


@router.post(
    "/{agent}/heartbeat",
    response_model=Orders,
    responses={204: {"description": "The agent knows its orders, and prefers a minimal answer."}},
    openapi_extra=sends("unknown-agent"),
)
async def heartbeat(
    agent: PathId, beat: Heartbeat, request: Request, use: Use, prefer: Annotated[str | None, Header()] = None
) -> Orders | Response:
    """The agent lives; the answer is everything that it is to hold, at once when it knows an older version. With
    `Prefer: return=minimal` (RFC 7240) orders that it knows are answered by 204, and programs are left out: the agent
    gets them by their hash."""
    orders = await use.service.heartbeat(agent, beat, request.is_disconnected)
    if prefer == MINIMAL:
        if orders.version == beat.known:
            return Response(status_code=HTTPStatus.NO_CONTENT)
    else:
        orders = orders.model_copy(update={"allocations": list(map(use.service.with_programs, orders.allocations))})
    return orders if use.credentials is None else use.credentials.orders(orders)


@router.delete(
    "/{agent}", status_code=HTTPStatus.NO_CONTENT, openapi_extra=sends("unknown-agent", "records-unavailable")
)
async def leave(
    agent: PathId, use: Use, reason: Annotated[str | None, Query(min_length=1, max_length=500)] = None
) -> None:
    """The agent takes leave, and its jobs recover. With a reason, by which its parent tells how it ended, that counts
    against their `max_restarts`."""
    await use.service.leave(agent, reason)
