"""Every error as an RFC 9457 problem document: the kinds that there are, and which kind an exception becomes.

What is raised, and the problem it becomes:

ProblemError                its own
RefusalError                that of its code
JobRefusedError             job-refused, with pointers
KeeperSilentError           keeper-silent
OperationalError            records-unavailable: the database is locked, its disk is full
RequestValidationError      invalid-request, with pointers
HTTPException               not-found, method-not-allowed and malformed-request, of the framework
ClientDisconnect            malformed-request, which nobody reads
anything else               internal-error, and a line in the log

`KINDS` is the one list of codes. A problem is made from its code alone, so none is sent that has no page and no status.
Each route names with `sends` the codes that it adds to those of all routes (see `weft_server.openapi`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from weft.api.problem import FieldError, Problem
from weft_server.pointers import pointer_of
from weft_server.refusals import JobRefusedError, KeeperSilentError, RefusalError

_log = logging.getLogger("weft.server")

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 50
SHOWN = 3
"""Errors that the detail tells too, for those who read nothing else."""
SENT: Final = "x-problems"
"""Where an operation of the description has its route's codes, until they become responses."""
_HEADERS: Final[Mapping[HTTPStatus, Mapping[str, str]]] = {
    # What is in the way may be gone in a second, and agents try again as often.
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "1"},
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
}
"""What goes with every answer of a status."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem."""

    status: HTTPStatus
    meaning: str
    remedy: str
    example: str
    """What a `detail` looks like."""


KINDS: Final[Mapping[str, Kind]] = {
    "malformed-json": Kind(
        HTTPStatus.BAD_REQUEST,
        "The body is not JSON as RFC 8259 defines it, or its values are nested more than 200 deep.",
        "Send one JSON document in UTF-8. JSON has no NaN and no Infinity.",
        "the body is not JSON: EOF while parsing an object at line 1 column 1",
    ),
    "repeated-key": Kind(
        HTTPStatus.BAD_REQUEST,
        "An object in the body has the same key twice. Readers differ in which of the two counts.",
        "Keep one of the two.",
        "an object has the key 'lr' twice: keep one of them",
    ),
    "malformed-request": Kind(
        HTTPStatus.BAD_REQUEST,
        "The request is not HTTP/1.1, or its head is too long.",
        "Use an HTTP client, and keep the path and the headers below 64 KiB.",
        "the request is not valid HTTP",
    ),
    "unauthorized": Kind(
        HTTPStatus.UNAUTHORIZED,
        "The server asks for a token, and the request has none or a wrong one.",
        "Send the header `Authorization: Bearer TOKEN` with the server's token. The SDK and the command line read it "
        "from WEFT_TOKEN.",
        "the call has no token: it needs the header 'Authorization: Bearer TOKEN'; for weft, set WEFT_TOKEN",
    ),
    "unknown-credential": Kind(
        HTTPStatus.UNAUTHORIZED,
        "The credential looks like one that a server gave to an agent, but this server did not issue it, or has "
        "another key now.",
        "Register the agent again with `POST /v1/agents`. Agents of weft do so by themselves.",
        "the server does not know this credential: it has another key now; register again",
    ),
    "wrong-credential": Kind(
        HTTPStatus.FORBIDDEN,
        "The token is valid, but not for this call: users' calls take the users' token, registrations the agents' "
        "token, and all other calls of an agent its own credential.",
        "Use the token that the detail names.",
        "the call came with a token, and wants the agents' token",
    ),
    "scope-needed": Kind(
        HTTPStatus.FORBIDDEN,
        "The token is valid, but its scope or its project does not allow the call.",
        "Use a token with the scope that the detail names. An admin makes one with `POST /v1/tokens`.",
        "the call needs a user's token with scope runner; 'reader' has scope viewer in project default",
    ),
    "wrong-origin": Kind(
        HTTPStatus.FORBIDDEN,
        "A browser sent the request for a page of another site. Such pages may not change anything here.",
        "Call the API from a program, or from a page of the same host and port.",
        "Origin 'https://example.org' is another site than '127.0.0.1:8470': its pages change nothing here",
    ),
    "not-found": Kind(
        HTTPStatus.NOT_FOUND,
        "The server has nothing at this path.",
        "Look the path up in the documentation at /docs. An id may not contain a slash.",
        "GET /v1/job: not found",
    ),
    "unknown-job": Kind(
        HTTPStatus.NOT_FOUND,
        "There is no job with this id. It may have been removed.",
        "List the jobs with `GET /v1/jobs` or `weft ls`.",
        "there is no job '4f1c2a9be07d4e11'",
    ),
    "unknown-upload": Kind(
        HTTPStatus.NOT_FOUND,
        "There is no upload with this id. Uploads expire after some hours.",
        "List the uploads with `GET /v1/uploads`, or upload the file again.",
        "there is no upload '0b6a7f0c9a1b4b21b3bd5c5c61b0a6a3'",
    ),
    "unknown-token": Kind(
        HTTPStatus.NOT_FOUND,
        "There is no token of this name in a project that the caller sees.",
        "List the tokens with `GET /v1/tokens`.",
        "there is no token 'reader'",
    ),
    "unknown-parameter": Kind(
        HTTPStatus.NOT_FOUND,
        "The job has no parameter of this name.",
        "List the job's parameters with `GET /v1/jobs/{job}/parameters`.",
        "job 4f1c2a9be07d4e11 has no parameter 'conv9.weight'",
    ),
    "unknown-agent": Kind(
        HTTPStatus.NOT_FOUND,
        "There is no agent with this id: it was never registered, was silent for too long, or has left.",
        "Stop what the agent runs and register again with `POST /v1/agents`. Agents of weft do so by themselves.",
        "there is no agent '9d3f0a6c5b7e4f12'",
    ),
    "unknown-allocation": Kind(
        HTTPStatus.NOT_FOUND,
        "There is no allocation with this id. Its job has ended or has given it up.",
        "Stop what runs for the allocation.",
        "there is no allocation '4f1c2a9be07d4e11-w0-1'",
    ),
    "method-not-allowed": Kind(
        HTTPStatus.METHOD_NOT_ALLOWED,
        "The path exists, but not with this method.",
        "Use one of the methods in the `Allow` header.",
        "PATCH /v1/jobs: method not allowed",
    ),
    "too-slow": Kind(
        HTTPStatus.REQUEST_TIMEOUT,
        "The body came too slowly. The server has closed the connection.",
        "Send the request again over a faster connection.",
        "the body came at less than 16384 bytes a second for 30 s",
    ),
    "caller-left": Kind(
        HTTPStatus.REQUEST_TIMEOUT,
        "The caller closed the connection before its turn came. Nothing was done.",
        "Keep the connection open until the answer is there.",
        "the caller has left before it was their turn",
    ),
    "wrong-state": Kind(
        HTTPStatus.CONFLICT,
        "The job is in a state in which this cannot be done.",
        "The detail says which state that is and what can be done. `GET /v1/jobs/{job}` shows the job.",
        "job 4f1c2a9be07d4e11 has succeeded, so it cannot be cancelled",
    ),
    "values-deleted": Kind(
        HTTPStatus.GONE,
        "The job has succeeded, and the file of its values was deleted from the server's disk.",
        "Put the file back. `weft resume` trains a job longer that still has its snapshot.",
        "the values of job 4f1c2a9be07d4e11 are not on the server's disk any more: their file was deleted",
    ),
    "values-not-set": Kind(
        HTTPStatus.CONFLICT,
        "The worker that was to set the job's parameters could not. Nothing was changed.",
        "The detail says why. Send the values again if the job still runs.",
        "the values were not set: the last step is under way",
    ),
    "stale-term": Kind(
        HTTPStatus.CONFLICT,
        "The allocation was given to another agent, or to the same one again, under a newer term.",
        "Stop what runs under the old term.",
        "allocation 4f1c2a9be07d4e11-w0-1 is not held under term 1",
    ),
    "not-wanted": Kind(
        HTTPStatus.CONFLICT,
        "The server does not want these values from this allocation, or has none for it (any more).",
        "Go on without them.",
        "step 5 of 6 has no final parameters",
    ),
    "too-large": Kind(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "The body is larger than this call takes. The server has closed the connection.",
        "Send less. The detail says how much is taken; the operator of the server can raise the limit.",
        "the body has 52428800 bytes; at most 16777216 are taken here",
    ),
    "unknown-media-type": Kind(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "The call takes JSON, and the body is declared as something else, or not at all.",
        "Send the header `Content-Type: application/json`.",
        "Content-Type 'text/plain': send JSON, with the header 'Content-Type: application/json'",
    ),
    "unknown-encoding": Kind(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "The body is compressed.",
        "Send the body as it is, without the header `Content-Encoding`.",
        "Content-Encoding 'gzip': bodies are taken as they are, without the header",
    ),
    "wrong-host": Kind(
        HTTPStatus.MISDIRECTED_REQUEST,
        "The server takes requests of this machine only, and the `Host` header is no name of it.",
        "Use http://127.0.0.1:PORT or http://localhost:PORT.",
        "Host 'example.org' is none of 127.0.0.1, [::1], localhost",
    ),
    "invalid-request": Kind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "A parameter of the request or a field of its body is missing, unknown, or not of the right type or range.",
        "`errors` says for each field what is wrong; `pointer` is a JSON pointer into the body.",
        "/parallelism/workers: Input should be greater than or equal to 1",
    ),
    "job-refused": Kind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "The job is well-formed but could not run: its graph, data, optimizer or size is wrong. Nothing was started.",
        "`errors` says what is wrong where: `pointer` is a JSON pointer into the job, `node` a node or parameter of "
        "the graph.",
        "data has no column 'answers': it has images, labels",
    ),
    "idempotency-key-reused": Kind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "The `Idempotency-Key` was used before, with another body.",
        "Use a new key for a new job.",
        "Idempotency-Key 'k1' was used before, with another body",
    ),
    "model-refused": Kind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "The file is no ONNX model that can be trained here.",
        "`errors` says what is wrong, with the node where there is one.",
        "the file is not ONNX: no graph is in it",
    ),
    "wrong-values": Kind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "The body is no safetensors document of the right tensors.",
        "`errors` says for each tensor what is wrong.",
        "the document is not taken: tensor 'b' has shape (4, 3), and (3,) is wanted",
    ),
    "illegal-report": Kind(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "An agent reported an event that the allocation cannot have in its present state.",
        "This is a defect of the agent. Use agents of the server's release.",
        "an allocation that is running has no event ready",
    ),
    "internal-error": Kind(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The server failed. This is a defect.",
        "Look into the server's log and report what it says.",
        "the server failed at GET /v1/jobs; its log says why",
    ),
    "records-unavailable": Kind(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The server's database does not take what is written to it: it is locked, or its disk is full.",
        "Send the same request again after `Retry-After` seconds. Make room on the server's disk if it stays so.",
        "the records do not answer: database is locked; nothing was changed, try again",
    ),
    "not-removed": Kind(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Something of the job could not be deleted, because its storage does not answer.",
        "Send the same request again later.",
        "the snapshots of job 4f1c2a9be07d4e11 cannot be deleted: connection refused",
    ),
    "not-ready": Kind(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The server runs, but cannot serve requests now.",
        "The detail says why. Wait, or restart the server.",
        "the database does not answer",
    ),
    "no-process": Kind(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The server has no process now for what is computed in one: a large job's check, or reading an ONNX file.",
        "Send the same request again after `Retry-After` seconds.",
        "the server cannot work on it now: the machine has no process for it; send it again",
    ),
    **{
        f"too-many-{noun}s": Kind(
            HTTPStatus.SERVICE_UNAVAILABLE,
            meaning,
            remedy,
            f"there are {most} {noun}s already, as many as this server holds; try again later",
        )
        for noun, most, meaning, remedy in (
            ("job", 1000, "The server holds as many jobs that have not ended as it can.", "Wait until one has ended."),
            ("agent", 4096, "As many agents are registered as the server takes.", "Stop agents that are not needed."),
            ("set", 16, "Too many changes of this job's parameters wait.", "Wait for the answers, then send the next."),
            (
                "call",
                4096,
                "As many calls of one user are being answered as the server takes; a stream of events is one.",
                "Close streams and answers that nobody reads; then send the same request again.",
            ),
            (
                "upload",
                1024,
                "The server holds as many uploads, or as many bytes of them, as it takes.",
                "Delete uploads that are not needed with `DELETE /v1/uploads/{upload}`, or wait until some expire.",
            ),
            (
                "check",
                64,
                "As many submitted jobs wait to be checked as the server takes.",
                "Send the same request again after `Retry-After` seconds.",
            ),
            (
                "model",
                16,
                "As many ONNX files wait to be read as the server takes.",
                "Send the same request again after `Retry-After` seconds.",
            ),
        )
    },
    "keeper-silent": Kind(
        HTTPStatus.GATEWAY_TIMEOUT,
        "The worker that reads and sets the running job's parameters did not answer in time.",
        "Send the request again. The job's log says what became of values that were to be set.",
        "worker-0 (worker 0), the keeper, did not bring the parameters within 30 s; it is at step 120",
    ),
    "not-stored": Kind(
        HTTPStatus.INSUFFICIENT_STORAGE,
        "The server's disk has no room for the body.",
        "Delete uploads and jobs that are not needed, then send the request again.",
        "the document cannot be kept: No space left on device",
    ),
}
"""Every kind of problem by its code, in the order of their statuses."""


class ProblemError(HTTPException):
    """Answers the request with this problem. A subclass of HTTPException, which the framework lets pass everywhere."""

    def __init__(
        self, code: str, detail: str, *, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        self.problem = problem(code, detail, errors)
        super().__init__(self.problem.status, detail, headers)


def problem(code: str, detail: str, errors: Sequence[FieldError] = ()) -> Problem:
    """`type` is the path of the code's page; the title is the code in words."""
    title, status = code.replace("-", " ").capitalize(), KINDS[code].status.value
    return Problem(type=f"/problems/{code}", title=title, status=status, detail=detail, code=code, errors=list(errors))


def respond(document: Problem, headers: Mapping[str, str] | None = None) -> Response:
    with_status = {**_HEADERS.get(HTTPStatus(document.status), {}), **(headers or {})}
    return Response(document.model_dump_json(), document.status, with_status, MEDIA_TYPE)


def sends(*codes: str) -> dict[str, Any]:
    """What a route's `openapi_extra` has for the problems that only some routes send."""
    assert KINDS.keys() >= set(codes), codes
    return {SENT: codes}


OF_JOB: Final = ("unknown-job", "records-unavailable")
"""What every route of one job sends."""
CHECKED: Final = ("job-refused", "too-many-checks", "caller-left", "no-process")
"""What a route that checks a job sends."""
DOCUMENT: Final = ("wrong-values", "too-slow", "not-stored")
"""What a route sends that takes a safetensors document."""


def invalid_request(found: Sequence[Mapping[str, Any]], body: object, more: int = 0) -> ProblemError:
    """What pydantic has found, with pointers into the body where it is about the body; and so many more errors."""
    errors = [field_error(each, body) for each in found[:MOST_ERRORS]]
    detail = "; ".join(f"{each.pointer or 'request'}: {each.detail}" for each in errors[:SHOWN])
    more += len(found) - SHOWN
    detail += f"; and {more} more" if more > 0 else ""
    return ProblemError("invalid-request", detail, errors=errors)


def field_error(error: Mapping[str, Any], body: object) -> FieldError:
    """One of pydantic's errors, with a pointer into the body where it is about the body."""
    place, *loc = error["loc"] or ("body",)
    message = error["msg"].removeprefix("Value error, ")
    if place == "body":
        return FieldError(pointer=pointer_of(loc, body, is_missing=error["type"] == "missing"), detail=message)
    return FieldError(pointer="", detail=f"{place} {'.'.join(map(str, loc))!r}: {message}")


def add_handlers(app: FastAPI) -> None:
    """Maps everything that can be raised in a route."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(RefusalError, _refusal)
    app.add_exception_handler(JobRefusedError, _job_refused)
    app.add_exception_handler(KeeperSilentError, _keeper_silent)
    app.add_exception_handler(OperationalError, _unavailable)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _internal)


_OF_FRAMEWORK: Final[Mapping[int, str]] = {
    404: "not-found",
    405: "method-not-allowed",
}


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ClientDisconnect):
        return _left(request, error)
    if isinstance(error, ProblemError):
        return respond(error.problem, error.headers)
    code = _OF_FRAMEWORK.get(error.status_code)
    if code is None:
        return _internal(request, error)
    detail = f"{request.method} {request.url.path}: {code.replace('-', ' ')}"
    headers = {"Allow": ", ".join(_allowed(request))} if code == "method-not-allowed" else None
    return respond(problem(code, detail), headers)


def _allowed(request: Request) -> list[str]:
    """The methods of all routes of the request's path: each route knows only its own."""
    routes = [each.original_route for each in iter_route_contexts(request.app.routes)]
    of_path = [each for each in routes if each.matches(request.scope)[0] is Match.PARTIAL]
    return sorted({method for route in of_path for method in getattr(route, "methods", ())})


def _validation(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return respond(invalid_request(error.errors(), error.body).problem)


def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return respond(problem(error.code, error.message))


def _job_refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, JobRefusedError)
    return respond(problem("job-refused", str(error), error.errors))


def _keeper_silent(_request: Request, error: Exception) -> Response:
    return respond(problem("keeper-silent", str(error)))


def _unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, OperationalError)
    _log.error("%s %s: the records do not answer: %s", request.method, request.url.path, error.orig)
    detail = f"the records do not answer: {error.orig}; nothing was changed, try again"
    return respond(problem("records-unavailable", detail))


def _left(_request: Request, _error: Exception) -> Response:
    """The caller has gone in the middle of its body: nobody reads the answer, and it is no fault of the server's."""
    return respond(problem("malformed-request", "the body ended before it was whole"))


def _internal(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(
        problem("internal-error", f"the server failed at {request.method} {request.url.path}; its log says why")
    )
