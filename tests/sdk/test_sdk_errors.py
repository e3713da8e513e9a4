"""Every way in which a server can refuse has a class of errors of its own."""

from __future__ import annotations

import re
import traceback
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest

import weft
import weft_server
from sdk_fakes import answers, job, problem, unavailable
from weft import errors
from weft.api.lifecycle import JobState
from weft.api.problem import FieldError, Problem

SERVER_SOURCES = sorted(Path(weft_server.__file__).parent.rglob("*.py"))


def statuses_of_the_server() -> set[int]:
    """Every status of 400 and more that the server's sources name."""
    found = {name for path in SERVER_SOURCES for name in re.findall(r"HTTPStatus\.([A-Z_]+)", path.read_text())}
    return {HTTPStatus[name].value for name in found if HTTPStatus[name].value >= 400}


def test_every_status_that_the_server_answers_with_has_its_class() -> None:
    found = statuses_of_the_server()
    assert {404, 409, 422, 500, 503} <= found
    for status in found:
        document = Problem(type="", title="t", status=status, detail="d", code="c")
        assert type(errors.error_for(status, document)) is not errors.ProblemError


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, weft.InvalidRequestError),
        (401, weft.UnauthenticatedError),
        (403, weft.ForbiddenError),
        (404, weft.NotFoundError),
        (405, weft.InvalidRequestError),
        (409, weft.ConflictError),
        (410, weft.NotFoundError),
        (412, weft.ConflictError),
        (413, weft.InvalidRequestError),
        (422, weft.InvalidRequestError),
        (429, weft.UnavailableError),
        (500, weft.ServerFaultError),
        (503, weft.UnavailableError),
        (504, weft.UnavailableError),
        (507, weft.ServerFaultError),
    ],
)
def test_a_status_becomes_its_class_over_the_wire(status: int, kind: type[weft.ProblemError]) -> None:
    with answers(problem(status, "some-code", "what was wrong")).client() as client, pytest.raises(kind) as caught:
        client.job("x")
    assert type(caught.value) is kind
    assert caught.value.code == "some-code"
    assert caught.value.status == status
    assert str(caught.value) == "what was wrong"


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"\+-- (\w+)|^(WeftError)", errors.__doc__, flags=re.MULTILINE))
    named = {name for pair in drawn for name in pair if name}
    there = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert named == there


def test_a_problem_prints_every_pointer() -> None:
    document = Problem(
        type="/problems/job-refused", title="Job refused", status=422, detail="the job is refused", code="job-refused",
        errors=[
            FieldError(pointer="/graph/nodes/3", detail="shapes differ", node="conv1"),
            FieldError(pointer="", detail="too large"),
        ],
    )  # fmt: skip
    assert str(errors.error_for(422, document)) == (
        "the job is refused\n  /graph/nodes/3 (conv1): shapes differ\n  /: too large"
    )


def test_a_job_s_error_says_what_it_died_of() -> None:
    failed = job(state=JobState.FAILED, reason="worker 1 was lost at step 7")
    assert str(weft.JobFailedError(failed)) == "job job-1 (digits) failed: worker 1 was lost at step 7"
    cancelled = job(state=JobState.CANCELLED)
    assert str(weft.JobCancelledError(cancelled)) == "job job-1 (digits) cancelled"
    told = cancelled.model_copy(update={"reason": "a client asked for it"})
    assert str(weft.JobCancelledError(told)) == "job job-1 (digits) cancelled: a client asked for it"


def test_a_single_problem_prints_once_with_its_pointer() -> None:
    detail = "column 'y' is missing"
    document = Problem(
        type="", title="t", status=422, detail=detail, code="job-refused",
        errors=[FieldError(pointer="/data/columns/y", detail=detail, node="y")],
    )  # fmt: skip
    assert str(errors.error_for(422, document)) == "/data/columns/y (y): column 'y' is missing"


def test_what_the_detail_repeats_is_said_once() -> None:
    found = [FieldError(pointer="/clip_norm", detail="above 0"), FieldError(pointer="/rule", detail="unknown")]
    document = Problem(
        type="", title="Job refused", status=422, detail="/clip_norm: above 0; /rule: unknown", code="c", errors=found
    )
    assert str(errors.error_for(422, document)) == "Job refused\n  /clip_norm: above 0\n  /rule: unknown"
    one = document.model_copy(update={"detail": "/clip_norm: above 0", "errors": found[:1]})
    assert str(errors.error_for(422, one)) == "/clip_norm: above 0"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (unavailable, weft.ConnectError),
        (problem(404, "unknown-job", "there is no job x"), weft.NotFoundError),
        (problem(503, "not-ready", "the server is starting"), weft.UnavailableError),
        (httpx.Response(200, json={"a": 1}), weft.ProtocolError),
        (httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"x")), weft.ProtocolError),
    ],
    ids=["no server", "refused", "not ready", "another server", "damaged"],
)
def test_what_a_user_sees_of_a_failed_call_is_one_short_traceback(answer: Any, kind: type[weft.WeftError]) -> None:
    handle = weft.JobHandle(answers(answer).client().http, job())
    calls = (handle.refresh, handle.values, lambda: next(handle.events()), handle.wait)
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value))
        assert shown.count("Traceback") == 1
        frames = traceback.extract_tb(caught.tb)[1:]
        assert not [frame for frame in frames if "site-packages" in frame.filename]
        assert len(frames) <= 7, shown
        assert len(str(caught.value).splitlines()) == 1


def test_a_closed_client_says_so() -> None:
    client = answers(job()).client()
    handle = client.job("x")
    client.close()
    for call in (lambda: client.job("x"), handle.refresh, lambda: next(handle.events()), handle.values):
        with pytest.raises(weft.ClosedError, match=r"the client of http://127\.0\.0\.1:8470 is closed"):
            call()
