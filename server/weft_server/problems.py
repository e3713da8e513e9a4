"""Every error as an RFC 9457 problem document.

What is raised, and the problem it becomes:

ProblemError                its own
check.JobRefusedError       422 job-refused, with pointers
refusals.UnknownError       404 unknown-job, unknown-agent, unknown-allocation
refusals.StaleTermError     409 stale-term
refusals.WrongStateError    409 wrong-state
refusals.NotKeeperError     409 not-wanted
refusals.NotSetError        409 values-not-set
refusals.IllegalReportError 422 illegal-report
refusals.FullError          503 too-many-jobs, too-many-agents, too-many-sets, too-many-uploads, ...
refusals.CallerLeftError    408 caller-left: nobody reads it
refusals.NotWrittenError    503 records-unavailable
values.KeeperSilentError    504 keeper-silent
OperationalError            503 records-unavailable: the database is locked, its disk is full
RequestValidationError      422 invalid-request, with pointers
HTTPException               404, 405 and others of the framework
anything else               500 internal-error, and a line in the log
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from weft.api.problem import FieldError, Problem
from weft_server.keeper_values import KeeperSilentError
from weft_server.pointers import pointer_of
from weft_server.refusals import (
    CallerLeftError,
    FullError,
    IllegalReportError,
    JobRefusedError,
    NotKeeperError,
    NotRemovedError,
    NotSetError,
    NotWrittenError,
    RefusalError,
    StaleTermError,
    UnknownError,
    WrongStateError,
)

_log = logging.getLogger("weft.server")

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 50
SHOWN = 3
"""Errors that the detail tells too, for those who read nothing else."""
RETRY = {"Retry-After": "1"}
"""Of every 503: what is in the way may be gone in a second, and agents try again as often."""

STATUS: Mapping[type[RefusalError], HTTPStatus] = {
    UnknownError: HTTPStatus.NOT_FOUND,
    StaleTermError: HTTPStatus.CONFLICT,
    WrongStateError: HTTPStatus.CONFLICT,
    NotKeeperError: HTTPStatus.CONFLICT,
    NotSetError: HTTPStatus.CONFLICT,
    IllegalReportError: HTTPStatus.UNPROCESSABLE_ENTITY,
    CallerLeftError: HTTPStatus.REQUEST_TIMEOUT,
    FullError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotRemovedError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotWrittenError: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The status of every refusal."""


class ProblemError(HTTPException):
    """Answers the request with this problem. A subclass of HTTPException, which the framework lets pass everywhere."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status.value, detail, headers)
        self.problem = problem(status, code, detail, errors)


def problem(status: HTTPStatus, code: str, detail: str, errors: Sequence[FieldError] = ()) -> Problem:
    """`type` ends in the code; the title is the code in words."""
    return Problem(
        type=f"/problems/{code}",
        title=code.replace("-", " ").capitalize(),
        status=status.value,
        detail=detail,
        code=code,
        errors=list(errors),
    )


def respond(document: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(document.model_dump_json(), document.status, headers, MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Maps everything that can be raised in a route."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(RefusalError, _refusal)
    app.add_exception_handler(JobRefusedError, _job_refused)
    app.add_exception_handler(KeeperSilentError, _keeper_silent)
    app.add_exception_handler(OperationalError, _unavailable)
    app.add_exception_handler(Exception, _internal)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, ProblemError):
        return respond(error.problem, error.headers)
    status = HTTPStatus(error.status_code)
    code = status.phrase.lower().replace(" ", "-")
    detail = str(error.detail)
    if detail == status.phrase:
        detail = f"{request.method} {request.url.path}: {detail.lower()}"
    return respond(problem(status, code, detail), error.headers)


def _validation(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = error.body
    found = [field_error(each, body) for each in error.errors()[:MOST_ERRORS]]
    detail = "; ".join(f"{each.pointer or 'request'}: {each.detail}" for each in found[:SHOWN])
    more = len(error.errors()) - SHOWN
    detail += f"; and {more} more" if more > 0 else ""
    return respond(problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, found))


def field_error(error: Mapping[str, Any], body: object) -> FieldError:
    """One of pydantic's errors, with a pointer into the body where it is about the body."""
    place, *loc = error["loc"] or ("body",)
    message = error["msg"].removeprefix("Value error, ")
    if place == "body":
        return FieldError(pointer=pointer_of(loc, body, is_missing=error["type"] == "missing"), detail=message)
    return FieldError(pointer="", detail=f"{place} {'.'.join(map(str, loc))!r}: {message}")


def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    status = STATUS[type(error)]
    headers = RETRY if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return respond(problem(status, error.code, error.message), headers)


def _job_refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, JobRefusedError)
    return respond(problem(HTTPStatus.UNPROCESSABLE_ENTITY, "job-refused", str(error), error.errors))


def _keeper_silent(_request: Request, error: Exception) -> Response:
    return respond(problem(HTTPStatus.GATEWAY_TIMEOUT, "keeper-silent", str(error)))


def _unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, OperationalError)
    _log.error("%s %s: the records do not answer: %s", request.method, request.url.path, error.orig)
    detail = f"the records do not answer: {error.orig}; nothing was changed, try again"
    return respond(problem(HTTPStatus.SERVICE_UNAVAILABLE, "records-unavailable", detail), RETRY)


def _internal(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    detail = f"the server failed at {request.method} {request.url.path}; its log says why"
    return respond(problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal-error", detail))
