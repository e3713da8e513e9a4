"""The OpenAPI 3.1 documents: one of the calls that users make, one of those that agents make.

FastAPI describes parameters, bodies and answers. What it cannot know is added here: the problems that each route sends,
also those that the server sends before a route is reached, what a call is authorized by, links from one call to the
next, and examples. A document describes one server: without a token nothing is authorized, and nothing is refused for
it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, Literal

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from weft.api.problem import Problem
from weft.api.token import Scope
from weft_server.access import RULES, Rule
from weft_server.examples import EXAMPLES, PARAMETERS
from weft_server.problems import KINDS, MEDIA_TYPE, SENT, problem
from weft_server.routes import agents, allocations, events, health, jobs, models, programs, tokens, uploads, values

Audience = Literal["users", "agents"]
Json = dict[str, Any]

ROUTERS: Final[Mapping[Audience, Sequence[APIRouter]]] = {
    "users": [
        *(each.router for each in (jobs, events, values, uploads, models, programs, tokens)),
        agents.listing,
        health.router,
    ],
    "agents": [agents.router, allocations.router],
}
"""All of the API."""
PATHS: Final[Mapping[Audience, str]] = {"users": "/openapi.json", "agents": "/agents/openapi.json"}
"""Where each document is."""
_TITLES: Final[Mapping[Audience, str]] = {"users": "weft", "agents": "weft, for its agents"}
_ABOUT: Final[Mapping[Audience, str]] = {
    "users": """Trains computation graphs on workers that share parameters.

Submit a job with `POST /v1/jobs`, follow it with `GET /v1/jobs/{job}/events`, and fetch what it has trained with
`GET /v1/jobs/{job}/values`.

Every answer that is not 2xx is a problem (RFC 9457) with a `code`; its `type` is the path of a page that says what it
means and what to do. Each call lists the problems that it sends. A path that there is not is answered by 404
[not-found](/problems/not-found), a method that a path does not have by 405
[method-not-allowed](/problems/method-not-allowed), and what is not HTTP by 400
[malformed-request](/problems/malformed-request).

Requests with an unknown field or query parameter are refused. Answers may have more fields in later releases: ignore
those that you do not know.""",
    "agents": """How workers and shards talk with the server. Programs of users need none of this.

An agent registers with `POST /v1/agents`, then calls `POST /v1/agents/{agent}/heartbeat` for ever: the answer is what
it is to hold. It reports what becomes of an allocation with `POST /v1/allocations/{allocation}/reports`. Agents and
server are of one release.""",
}
_TAGS: Final[Mapping[str, str]] = {
    "jobs": "Submit, list, look at, stop, scale, remove.",
    "events": "A job's log: its states, metrics and log lines.",
    "values": "Parameters' values, of jobs and as uploads that jobs begin with. Documents are safetensors files.",
    "models": "ONNX files are read into graphs that jobs are made of.",
    "programs": "What the server makes of a graph.",
    "tokens": "Users' tokens, each with a scope and a project.",
    "cluster": "Workers and shards.",
    "health": "For whoever restarts processes and sends them traffic. No token is asked for.",
    "agents": "Workers and shards register, say that they live, report and bring values.",
}
_SCHEMES: Final[Mapping[str, Json]] = {
    **{
        f"{scope}Token": {
            "type": "http",
            "scheme": "bearer",
            "description": f"A user's token of scope {scope}{wider}, made by `POST /v1/tokens`; or the server's own, "
            "WEFT_SERVER_TOKEN, which is an admin's.",
        }
        for scope, wider in ((Scope.VIEWER, " or wider"), (Scope.RUNNER, " or wider"), (Scope.ADMIN, ""))
    },
    "agentToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "What agents register with: WEFT_SERVER_AGENT_TOKEN, or the users' token where that is not set.",
    },
    "agentCredential": {"type": "http", "scheme": "bearer", "description": "What the agent's registration returned."},
    "allocationCredential": {
        "type": "http",
        "scheme": "bearer",
        "description": "What the allocation has in its agent's orders.",
    },
}
_BY_JOB: Final = (
    "get_job",
    "get_job_spec",
    "list_parameters",
    "get_events",
    "get_programs",
    "get_values",
    "set_values",
    "scale_job",
    "stop_job",
    "cancel_job",
    "remove_job",
)
_LINKS: Final[Mapping[tuple[str, str], tuple[str, Sequence[str]]]] = {
    ("submit_job", "201"): ("job", _BY_JOB),
    ("cancel_job", "200"): ("job", ("get_job", "get_events", "remove_job")),
    ("create_upload", "201"): ("upload", ("delete_upload",)),
    ("register", "201"): ("agent", ("heartbeat", "leave")),
}
"""(operation, status) -> the calls that can follow, and the parameter of theirs that is the answer's `id`."""
_HEADERS: Final[Mapping[str, Json]] = {
    "401": {"WWW-Authenticate": {"description": "`Bearer`", "required": True, "schema": {"type": "string"}}},
    "503": {"Retry-After": {"description": "Seconds", "required": True, "schema": {"type": "integer"}}},
}
_CHANGING: Final = frozenset({"post", "put", "delete", "patch"})


@cache
def describe(audience: Audience, *, tokens: bool, is_loopback: bool) -> Json:
    """The document. `tokens`: whether the server asks for them; `is_loopback`: whether it serves this machine alone."""
    routes = [route for router in ROUTERS[audience] for route in router.routes if isinstance(route, APIRoute)]
    names = {route.unique_id: route.name for route in routes}
    described = get_openapi(
        title=_TITLES[audience], version=version("weft"), description=_ABOUT[audience], routes=routes
    )
    operations = [(method, path, call) for path, calls in described["paths"].items() for method, call in calls.items()]
    for method, path, call in operations:
        name = call["operationId"] = names[call["operationId"]]
        rule = RULES[f"{method.upper()} {path}"]
        codes = [*call.pop(SENT, ()), *_before_the_route(method, path, call, is_loopback)]
        call["responses"].pop("422", None)  # FastAPI's own, which nothing sends
        call["responses"].update(_problem_answers([*codes, *(_of_rule(rule) if tokens else ())]))
        call["security"] = [{scheme: []} for scheme in _schemes(rule)] if tokens else []
        _add_links(name, call)
        _add_examples(name, call)
    schemas = described["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(_problem_schemas())
    _close_patterns(schemas)
    _open_answers(described, operations)
    described["components"]["examples"] = {
        code: {"summary": kind.meaning, "value": problem(code, kind.example).model_dump(mode="json")}
        for code, kind in KINDS.items()
    }
    if tokens:
        used = {scheme for _, _, call in operations for each in call["security"] for scheme in each}
        described["components"]["securitySchemes"] = {name: _SCHEMES[name] for name in _SCHEMES if name in used}
    tags = {tag for _, _, call in operations for tag in call["tags"]}
    described["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items() if name in tags]
    return described


def codes_of(call: Mapping[str, Any], status: int) -> list[str]:
    """The codes of the problems that an operation sends with a status."""
    schema = call["responses"].get(str(status), {}).get("content", {}).get(MEDIA_TYPE, {}).get("schema", {})
    return list(schema.get("properties", {}).get("code", {}).get("enum", ()))


def _before_the_route(method: str, path: str, call: Json, is_loopback: bool) -> Iterator[str]:
    """The codes that the gates, the framework and the reading of a request send."""
    yield "internal-error"
    if is_loopback:
        yield "wrong-host"
    if method in _CHANGING:
        yield from ("wrong-origin", "unknown-encoding", "too-large")
    yield "too-many-calls"
    if path.startswith("/v1/"):
        yield "invalid-request"  # at least an unknown query parameter
    if "{" in path:
        yield "not-found"  # an id with a slash is another path
    if "application/json" in call.get("requestBody", {}).get("content", {}):
        yield from ("malformed-json", "repeated-key", "unknown-media-type", "too-slow")


def _problem_answers(codes: Iterable[str]) -> Json:
    """The responses of problems, by status. Their schema has the codes, so a client can tell them all apart."""
    by_status: dict[int, list[str]] = {}
    for code in sorted(set(codes), key=list(KINDS).index):
        by_status.setdefault(KINDS[code].status.value, []).append(code)
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: "
            + ", ".join(f"[{code}](/problems/{code})" for code in of_status),
            "headers": _HEADERS.get(str(status), {}),
            "content": {
                MEDIA_TYPE: {
                    "schema": {
                        "$ref": "#/components/schemas/Problem",
                        "properties": {"status": {"const": status}, "code": {"enum": of_status}},
                    },
                    "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in of_status},
                }
            },
        }
        for status, of_status in sorted(by_status.items())
    }


def _of_rule(rule: Rule) -> Iterator[str]:
    """The codes that `weft_server.access` sends for a call with this rule."""
    if not rule.open:
        yield from ("unauthorized", "unknown-credential", "wrong-credential")
    if rule.scope is not None and (rule.scope is not Scope.VIEWER or rule.of_all_projects):
        yield "scope-needed"


def _schemes(rule: Rule) -> Iterator[str]:
    """Any of these authorizes the call."""
    if rule.scope is not None:
        yield f"{rule.scope}Token"
    if rule.holder is not None:
        yield {"agents": "agentCredential", "allocations": "allocationCredential"}[rule.holder]
    if rule.joining:
        yield "agentToken"


def _add_links(name: str, call: Json) -> None:
    for status, response in call["responses"].items():
        parameter, targets = _LINKS.get((name, status), ("", ()))
        if targets:
            response["links"] = {
                target: {"operationId": target, "parameters": {parameter: "$response.body#/id"}} for target in targets
            }


def _add_examples(name: str, call: Json) -> None:
    for parameter in call.get("parameters", ()):
        kinds = parameter["schema"].get("anyOf", ())
        if {"type": "null"} in kinds:  # what is not given: no header and no query parameter is null
            (kind,) = (each for each in kinds if each != {"type": "null"})
            parameter["schema"] = {**parameter["schema"], **kind}
            del parameter["schema"]["anyOf"]
        if parameter["name"] in PARAMETERS:
            parameter["example"] = PARAMETERS[parameter["name"]]
    examples = EXAMPLES.get(name, {})
    for status, response in {"request": call.get("requestBody", {}), **call["responses"]}.items():
        if status in examples:
            response["content"]["application/json"]["examples"] = {
                each: {"value": copy.deepcopy(value)} for each, value in examples[status].items()
            }


def _problem_schemas() -> Json:
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), "Problem": schema}


def _close_patterns(part: Any) -> None:
    """Keys of another pattern are refused, which pydantic does not say."""
    if isinstance(part, dict):
        if "patternProperties" in part:
            part["additionalProperties"] = False
        part = list(part.values())
    for each in part if isinstance(part, list) else ():
        _close_patterns(each)


def _open_answers(described: Json, operations: Iterable[tuple[str, str, Json]]) -> None:
    """Models that only answers have may get more fields in later releases."""
    schemas = described["components"]["schemas"]
    closed: set[str] = set()
    for _, _, call in operations:
        closed |= set(_reached([call.get("requestBody", {}), call.get("parameters", [])], schemas))
    for name in schemas.keys() - closed:
        if schemas[name].get("additionalProperties") is False:
            del schemas[name]["additionalProperties"]


def _reached(part: Any, schemas: Mapping[str, Any]) -> Iterator[str]:
    """The names of the schemas that a part of the document refers to, also through others."""
    found: dict[str, None] = {}
    left = [part]
    while left:
        here = left.pop()
        if isinstance(here, list):
            left += here
        elif isinstance(here, dict):
            name = str(here.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found[name] = None
                left.append(schemas[name])
            left += [each for key, each in here.items() if key != "examples"]
    yield from found
