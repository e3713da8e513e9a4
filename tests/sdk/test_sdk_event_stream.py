"""Following a job's events: each once, in order, over streams that break."""

from __future__ import annotations

import httpx
import pytest

import weft
from sdk_fakes import Script, answers, job, problem, sse, states, stream, unavailable
from weft.api.event import Event
from weft.api.lifecycle import JobState
from weft.event_stream import BACK, PATIENCE_S, Notice, follow, narrate
from weft.http import DEFAULT_RETRY

ALL = states("pending", "starting", "running", "finishing", "succeeded")


def followed(script: Script, after: int = 0) -> list[Event]:
    return list(follow(script.client().http, "job-1", after=after))


def last_event_ids(script: Script) -> list[str]:
    return [r.headers["Last-Event-ID"] for r in script.requests if r.url.path.endswith("/events")]


def test_events_come_in_order_and_end_with_the_job() -> None:
    script = answers(stream(b": hello\n\n", sse(ALL[:2]), sse(ALL[2:]), b"data: never read\n\n"))
    assert followed(script) == ALL
    assert last_event_ids(script) == ["0"]


@pytest.mark.parametrize("cut", range(0, len(sse(ALL)), 97))
def test_a_stream_that_breaks_anywhere_is_taken_up_behind_the_last_event(cut: int) -> None:
    """The server answers by Last-Event-ID alone, so an event that is lost or repeated would show."""

    def rest(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, content=job().model_dump_json())
        return stream(sse(ALL[int(request.headers["Last-Event-ID"]) :]))

    script = answers(stream(sse(ALL)[:cut], then=httpx.ReadError("reset")), rest)
    assert followed(script) == ALL


def test_an_event_that_a_server_repeats_is_given_once() -> None:
    script = answers(stream(sse(ALL[:3]), then=httpx.ReadTimeout("silent")), stream(sse(ALL)))
    assert followed(script) == ALL
    assert last_event_ids(script) == ["0", "3"]


def test_a_stream_that_ends_early_is_taken_up() -> None:
    script = answers(stream(sse(ALL[:2])), job(), stream(sse(ALL[2:])))
    assert followed(script) == ALL


def test_a_server_that_starts_again_in_time_is_found_again() -> None:
    """Whether it broke off or took leave: then the stream has an end, and the question after the job has no answer."""
    took_leave = answers(stream(sse(ALL[:1])), *[unavailable] * 8, stream(sse(ALL[1:])))
    assert followed(took_leave) == ALL
    script = answers(stream(sse(ALL[:1]), then=httpx.ReadError("reset")), *[unavailable] * 5, stream(sse(ALL[1:])))
    assert followed(script) == ALL
    assert script.time.slept == pytest.approx([DEFAULT_RETRY.pause_s(n) for n in range(1, 7)])


def test_a_restart_is_bridged_for_more_than_a_minute_and_is_told_of() -> None:
    away = [unavailable] * 40  # 0.1 + 0.2 + 0.4 + 0.8 + 1.6 s, then 2 s each
    script = answers(stream(sse(ALL[:2]), then=httpx.ReadError("reset")), *away, stream(sse(ALL[2:])))
    told = list(narrate(script.client().http, "job-1"))
    assert script.time.now > 60
    notices = [each for each in told if isinstance(each, Notice)]
    assert [each for each in told if isinstance(each, Event)] == ALL
    assert [notice.text.split(";")[0] for notice in notices] == ["no answer from http://127.0.0.1:8470", BACK.text]
    assert "waiting up to 90 s" in notices[0].text


def test_a_server_that_stays_away_ends_it() -> None:
    script = answers(stream(sse(ALL[:1]), then=httpx.ReadError("reset")), unavailable)
    seen: list[Event] = []
    with pytest.raises(weft.ConnectError):
        seen.extend(follow(script.client().http, "job-1"))
    assert seen == ALL[:1]
    assert script.time.now == pytest.approx(PATIENCE_S)


def test_an_unknown_job_is_told_at_once() -> None:
    script = answers(problem(404, "unknown-job"))
    with pytest.raises(weft.NotFoundError):
        followed(script)
    assert len(script.requests) == 1


def test_following_behind_the_last_event_of_an_ended_job_ends() -> None:
    script = answers(stream(), job(state=JobState.SUCCEEDED))
    assert followed(script, after=5) == []


@pytest.mark.parametrize("data", [b"data: {}\n\n", b"data: nonsense\n\n"])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(weft.ProtocolError, match="no event"):
        followed(answers(stream(data)))


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(weft.ProtocolError, match="text/html"):
        followed(answers(httpx.Response(200, html="<html>")))
