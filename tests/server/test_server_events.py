"""The event log: a stream that can be resumed anywhere, and pages of the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_running import cast, eventually, running, state, submit
from server_specs import save_rows, spec_json
from weft.api.event import Event, EventPage
from weft.api.lifecycle import AllocationEvent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("events")) as client:
        yield client


@pytest.fixture
def client(server: httpx.Client) -> Iterator[httpx.Client]:
    """One server for all these tests; jobs that wait are cancelled after each."""
    yield server
    for job in server.get("/v1/jobs", params={"state": "pending"}).json()["jobs"]:
        server.post(f"/v1/jobs/{job['id']}/cancel")


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return spec_json(save_rows(tmp_path / "rows.npz"))


def read(lines: Iterator[str]) -> Iterator[tuple[str, str, Event]]:
    """(id, event's name, event) of each message of a stream; comments are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["id"], fields["event"], Event.model_validate_json(fields["data"])
            fields = {}


def stream(
    client: httpx.Client, job: str, *, after: int | None = None, tail: int | None = None, last: int | None = None
) -> list[Event]:
    """Everything until the server ends the stream."""
    params = {name: value for name, value in (("after", after), ("tail", tail)) if value is not None}
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", f"/v1/jobs/{job}/events", params=params, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event for _, _, event in read(response.iter_lines())]


def test_a_stream_follows_a_job_to_its_end_and_ends(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    with client.stream("GET", f"/v1/jobs/{job}/events") as response:
        messages = read(response.iter_lines())
        first = next(messages)
        assert (first[0], first[1], first[2].body.kind) == ("1", "state", "state")
        with cast(client):
            rest = list(messages)
    events = [first[2], *(event for _, _, event in rest)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [identifier for identifier, _, _ in rest] == [str(event.seq) for _, _, event in rest]
    states = [event.body.state for event in events if event.body.kind == "state"]
    assert states == ["pending", "starting", "running", "finishing", "succeeded"]
    assert {event.body.kind for event in events} == {"state", "step", "metric", "log"}


def test_a_stream_resumes_behind_any_event(client: httpx.Client, document: dict[str, Any]) -> None:
    with cast(client):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
    whole = stream(client, job)
    for seen in range(len(whole) + 1):
        assert stream(client, job, last=seen) == whole[seen:]
        assert stream(client, job, after=seen) == whole[seen:]
    assert stream(client, job, after=0, last=len(whole)) == [], "Last-Event-ID is the newer word"
    assert stream(client, job, after=10_000) == []
    for tail in (0, 1, 3, len(whole) + 1):
        assert stream(client, job, tail=tail) == whole[len(whole) - min(tail, len(whole)) :]
    assert stream(client, job, after=len(whole) - 1, tail=3) == whole[-1:]


def test_pages_hold_the_same_events_as_the_stream(client: httpx.Client, document: dict[str, Any]) -> None:
    with cast(client):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
    whole = stream(client, job)
    paged: list[Event] = []
    after = 0
    while True:
        params: dict[str, str | int] = {"format": "json", "after": after, "limit": 2}
        page = EventPage.model_validate(client.get(f"/v1/jobs/{job}/events", params=params).json())
        assert page.ended
        if not page.events:
            break
        paged += page.events
        after = page.after
    assert paged == whole


def test_a_page_of_a_job_that_goes_on_says_so(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    page = client.get(f"/v1/jobs/{job}/events", params={"format": "json"}).json()
    assert (len(page["events"]), page["after"], page["ended"]) == (1, 1, False)


def test_streams_end_when_the_server_does(tmp_path: Path, document: dict[str, Any]) -> None:
    with running(tmp_path / "other") as client:
        job = submit(client, document).json()["id"]
        url = f"{client.base_url}/v1/jobs/{job}/events"
        with httpx.Client() as reader, reader.stream("GET", url) as response:
            messages = read(response.iter_lines())
            next(messages)
            with cast(client, stop_at=AllocationEvent.RUNNING):
                eventually(lambda: state(client, job) == "running", "the job runs")
            # The fixture behind `running` fails the test when the server does not end while this stream is open.


@pytest.mark.parametrize("bad", ["-1", "x", "1.5"])
def test_a_last_event_id_that_is_no_number_is_refused(client: httpx.Client, document: dict[str, Any], bad: str) -> None:
    job = submit(client, document).json()["id"]
    refused = client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": bad})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-request")
