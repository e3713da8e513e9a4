"""The jobs' routes of a server that runs, with agents that talk HTTP to it."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from server_hands import refused
from server_running import DEADLINE_S, cast, eventually, running, state, submit
from server_specs import CLASSES, FEATURES, save_rows, spec_json
from weft.api.job import Job, JobPage, JobSpec, ParameterList
from weft.api.lifecycle import AllocationEvent
from weft_graph.json_form import graph_schema
from weft_server.forks import LimitError
from weft_server.planning.check import read_and_check
from weft_server.planning.plan import JobPlan
from weft_server.routes.context import SMALL_BYTES
from weft_server.storage.records import Records
from weft_server.threads import LARGE_READERS, READERS


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "server") as client:
        yield client


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return spec_json(save_rows(tmp_path / "rows.npz"))


def test_a_job_is_submitted_run_and_its_parameters_are_kept(client: httpx.Client, document: dict[str, Any]) -> None:
    with cast(client):
        response = submit(client, document)
        assert response.status_code == 201
        job = Job.model_validate(response.json())
        assert response.headers["location"] == f"/v1/jobs/{job.id}"
        eventually(lambda: state(client, job.id) == "succeeded", "the job succeeds")
    ended = Job.model_validate(client.get(f"/v1/jobs/{job.id}").json())
    assert ended.progress.step == ended.progress.steps == 6
    # Slot 0 reports a sum of 1 over two samples, slot 1 a sum of 2.
    assert ended.metrics == {"train/loss": 0.75}
    values = client.get(f"/v1/jobs/{job.id}/values")
    assert values.headers["weft-step"] == "6"
    loaded = load(values.content)
    assert loaded.keys() == {"w", "b"}
    np.testing.assert_array_equal(loaded["w"], np.full((FEATURES, CLASSES), 6, np.float32))


def test_some_values_can_be_asked_for_by_name(client: httpx.Client, document: dict[str, Any]) -> None:
    with cast(client):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
    only = client.get(f"/v1/jobs/{job}/values", params={"name": ["b"]})
    assert load(only.content).keys() == {"b"}
    missing = client.get(f"/v1/jobs/{job}/values", params={"name": ["b", "c"]})
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown-parameter")
    assert missing.json()["detail"] == f"job {job} has no parameter 'c'; it has 'b', 'w'"


def test_values_of_a_running_job_are_fetched_from_its_keeper(client: httpx.Client, document: dict[str, Any]) -> None:
    with cast(client, stop_at=AllocationEvent.RUNNING) as (workers, _):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        for _ in range(2):
            live = client.get(f"/v1/jobs/{job}/values")
            assert live.headers["weft-step"] == "1"
            np.testing.assert_array_equal(load(live.content)["b"], np.ones(CLASSES, np.float32))
        for worker in workers:
            worker.finish()
        eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
    assert client.get(f"/v1/jobs/{job}/values").headers["weft-step"] == "6"


def test_a_keeper_that_does_not_answer_is_named(tmp_path: Path, document: dict[str, Any]) -> None:
    release = threading.Event()

    def never(_step: int) -> bytes:
        release.wait()
        return b""

    with (
        running(tmp_path / "server", values_deadline_s=0.3) as client,
        cast(client, stop_at=AllocationEvent.RUNNING, brings=never),
    ):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        late = client.get(f"/v1/jobs/{job}/values")
        assert (late.status_code, late.json()["code"]) == (504, "keeper-silent")
        assert "(worker 0), the keeper, did not bring the parameters within 0.3 s" in late.json()["detail"]
        client.post(f"/v1/jobs/{job}/cancel")
        release.set()


def test_a_job_that_has_not_started_has_no_values(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    early = client.get(f"/v1/jobs/{job}/values")
    assert (early.status_code, early.json()["code"]) == (409, "wrong-state")
    assert "pending" in early.json()["detail"]


def test_the_same_key_and_body_give_the_same_job(client: httpx.Client, document: dict[str, Any]) -> None:
    first = submit(client, document, **{"Idempotency-Key": "k1"})
    again = submit(client, document, **{"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert submit(client, document, **{"Idempotency-Key": "k2"}).json()["id"] != first.json()["id"]
    other = submit(client, {**document, "name": "other"}, **{"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")
    assert len(client.get("/v1/jobs").json()["jobs"]) == 2


def test_one_key_sent_by_many_at_once_makes_one_job(client: httpx.Client, document: dict[str, Any]) -> None:
    made: list[str] = []

    def send() -> None:
        made.append(submit(client, document, **{"Idempotency-Key": "race"}).json()["id"])

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6
    assert len(set(made)) == 1
    assert len(client.get("/v1/jobs").json()["jobs"]) == 1


def test_jobs_are_listed_in_pages_newest_first_and_by_state(client: httpx.Client, document: dict[str, Any]) -> None:
    made = [submit(client, document).json()["id"] for _ in range(5)]
    client.post(f"/v1/jobs/{made[2]}/cancel")
    listed: list[str] = []
    cursor = None
    for _ in range(3):
        page = JobPage.model_validate(
            client.get("/v1/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        )
        listed += [job.id for job in page.jobs]
        cursor = page.next
    assert cursor is None
    assert listed == made[::-1]
    found = client.get("/v1/jobs", params={"state": ["cancelled", "failed"]}).json()["jobs"]
    assert [job["id"] for job in found] == [made[2]]


def test_a_pending_job_says_what_it_waits_for(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()
    assert (job["state"], job["reason"]) == (
        "pending",
        "needs 1 shard; 0 are registered: start 1 more (python -m weft_kvstore --server URL)",
    )


def test_cancelling_twice_changes_nothing_and_an_ended_job_cannot_be_cancelled(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    job = submit(client, document).json()["id"]
    for _ in range(2):
        cancelled = client.post(f"/v1/jobs/{job}/cancel")
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        assert cancelled.json()["reason"] == "on request"  # Where nobody has a name.
    with cast(client):
        done = submit(client, document).json()["id"]
        eventually(lambda: state(client, done) == "succeeded", "the job succeeds")
    refused = client.post(f"/v1/jobs/{done}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong-state")


def test_a_cancelled_job_takes_its_orders_back(client: httpx.Client, document: dict[str, Any]) -> None:
    with cast(client, stop_at=AllocationEvent.RUNNING) as (workers, shards):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        client.post(f"/v1/jobs/{job}/cancel")
        for actor in (*workers, *shards):
            eventually(lambda actor=actor: actor.orders[-1].allocations == [], f"{actor.name} is released")


def test_an_agent_that_falls_silent_fails_the_job(tmp_path: Path, document: dict[str, Any]) -> None:
    with (
        running(tmp_path / "server") as client,
        cast(client, workers=1, stop_at=AllocationEvent.RUNNING),
    ):
        # A second worker, for which the job waits, registers once and is never heard of again.
        job = submit(client, document).json()["id"]
        client.post("/v1/agents", json={"kind": "worker", "name": "mute", "pid": 9})
        eventually(lambda: state(client, job) == "failed", "the job fails")
        reason = client.get(f"/v1/jobs/{job}").json()["reason"]
        assert reason.startswith("mute (worker ")
        assert "was lost: silent for " in reason
        shown = {each["name"]: each["state"] for each in client.get("/v1/agents").json()["agents"]}
        assert shown["mute"] == "lost"
        assert shown["worker-0"] == "alive"


def test_parameters_are_listed_without_values(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    listed = ParameterList.model_validate(client.get(f"/v1/jobs/{job}/parameters").json())
    assert [(each.name, each.dtype, each.shape, each.trainable) for each in listed.parameters] == [
        ("w", "float32", [FEATURES, CLASSES], True),
        ("b", "float32", [CLASSES], True),
    ]


def test_what_is_soon_read_does_not_wait_for_what_is_large(
    client: httpx.Client, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(client, document).json()["id"]
    client.post(f"/v1/jobs/{job}/cancel")
    reading, go_on, programs = threading.Semaphore(0), threading.Event(), Records.programs

    def slow(records: Records, job: str) -> str | None:
        reading.release()
        go_on.wait(2 * DEADLINE_S)  # longer than a call takes to fail
        return programs(records, job)

    monkeypatch.setattr(Records, "programs", slow)
    with ThreadPoolExecutor(READERS) as threads:
        answers = [threads.submit(client.get, f"/v1/jobs/{job}/programs") for _ in range(READERS)]
        for _ in range(LARGE_READERS):  # all that are let begin
            assert reading.acquire(timeout=DEADLINE_S)
        assert client.get("/v1/jobs").status_code == 200
        go_on.set()
        assert {answer.result().json().keys() >= {"train", "keys"} for answer in answers} == {True}


def test_a_job_that_is_not_read_in_time_is_not_refused(
    client: httpx.Client, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(client, document).json()["id"]
    monkeypatch.setattr("weft_server.forks.Forks.run", AsyncMock(side_effect=LimitError("60 s")))
    told = refused(client.get(f"/v1/jobs/{job}/spec"), 503, "no-process")
    assert "reading the job takes more than 60 s" in told.detail
    assert refused(submit(client, document), 422, "job-refused").errors[0].pointer == "/graph"


def test_programs_can_be_read_by_machines_and_by_people(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    assert client.get(f"/v1/jobs/{job}/programs").json().keys() >= {"train", "evaluate", "keys"}
    text = client.get(f"/v1/jobs/{job}/programs", params={"format": "text"})
    assert text.headers["content-type"].startswith("text/plain")
    assert "= Gemm(" in text.text
    assert "2 parameters of 60 B in all, on 1 shard and 2 workers" in text.text


def test_what_each_pass_did_can_be_read(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    short, full = (
        client.get(f"/v1/jobs/{job}/programs", params={"format": form}).text for form in ("passes", "passes-full")
    )
    assert "differentiation" in short
    assert "\n      + " in full
    assert "\n      + " not in short
    for passes, text in (("short", short), ("full", full)):
        run = client.post("/v1/jobs", params={"dry_run": "true", "passes": passes}, json=document).json()
        assert run["passes"] == text.rstrip("\n")
    assert client.post("/v1/jobs", params={"dry_run": "true"}, json=document).json()["passes"] == ""
    assert client.get("/v1/jobs/none/programs", params={"format": "passes"}).status_code == 404
    assert client.get(f"/v1/jobs/{job}/programs", params={"format": "pass"}).status_code == 422


def test_the_graphs_schema_is_there(client: httpx.Client) -> None:
    assert client.get("/v1/schemas/graph").json() == graph_schema()


def test_jobs_and_events_outlive_the_server_and_pending_ones_still_start(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    with running(tmp_path / "server") as client:
        waiting = submit(client, document).json()["id"]
    with running(tmp_path / "server") as client, cast(client):
        eventually(lambda: state(client, waiting) == "succeeded", "the pending job is run after the restart")
        log = client.get(f"/v1/jobs/{waiting}/events", params={"format": "json"}).json()["events"]
        assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))


def test_a_job_goes_on_when_the_server_is_started_again_on_its_port(tmp_path: Path, document: dict[str, Any]) -> None:
    with ExitStack() as played:
        with running(tmp_path / "server") as client:
            port = client.base_url.port
            job = submit(client, document).json()["id"]
            workers, shards = played.enter_context(cast(client, stop_at=AllocationEvent.RUNNING))
            eventually(lambda: state(client, job) == "running", "the job runs")
            before = client.get(f"/v1/jobs/{job}/events", params={"format": "json"}).json()["events"]
        held = [actor.orders[-1].version for actor in (*workers, *shards)]
        with running(tmp_path / "server", port=port) as client:
            again = client.get(f"/v1/jobs/{job}/events", params={"format": "json"}).json()["events"]
            assert again == before
            assert client.get(f"/v1/jobs/{job}/values").headers["weft-step"] == "1"
            for worker in workers:
                worker.finish()
            eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
            log = client.get(f"/v1/jobs/{job}/events", params={"format": "json"}).json()["events"]
            assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))
            everybody = [*workers, *shards]
            eventually(
                lambda: all(each.orders[-1].version > old for each, old in zip(everybody, held, strict=True)),
                "orders have newer versions",
            )
            assert [actor.lost_times for actor in (*workers, *shards)] == [0, 0, 0]
            played.close()


def test_a_job_whose_memory_the_records_lack_fails_and_says_so(tmp_path: Path, document: dict[str, Any]) -> None:
    with running(tmp_path / "server") as client:
        job = submit(client, document).json()["id"]
    with closing(sqlite3.connect(tmp_path / "server" / "weft.db")) as database, database:
        database.execute("UPDATE jobs SET state = 'running', document = json_set(document, '$.state', 'running')")
        database.execute("DELETE FROM parts")
    with running(tmp_path / "server") as client:
        ended = client.get(f"/v1/jobs/{job}").json()
        assert ended["state"] == "failed"
        assert ended["reason"] == "the server was restarted while the job was running, at step 0 of 6"


def test_a_cursor_beyond_any_job_is_refused(client: httpx.Client) -> None:
    response = client.get("/v1/jobs", params={"cursor": 1 << 63})
    assert response.status_code == 422
    assert response.headers["content-type"].startswith("application/problem+json")


def test_parameters_that_cannot_be_stored_are_refused_with_the_reason(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path
) -> None:
    with cast(client, stop_at=AllocationEvent.RUNNING) as (workers, _):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        (tmp_path / "server" / "jobs" / job).write_text("where its folder would be")
        allocation = next(o for w in workers for o in w.orders[-1].allocations if getattr(o, "keeper", False))
        response = client.put(
            f"/v1/allocations/{allocation.id}/parameters",
            params={"term": allocation.term, "step": 6, "final": "true"},
            content=b"",
        )
    assert response.status_code == 507
    assert response.json()["code"] == "not-stored"
    assert "File exists" in response.json()["detail"]


def test_a_job_beyond_those_that_the_server_holds_is_refused_until_one_has_ended(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    with running(tmp_path / "small", most_jobs=1) as client:
        first = submit(client, document, **{"Idempotency-Key": "k"}).json()["id"]
        refused = submit(client, document)
        assert (refused.status_code, refused.json()["code"]) == (503, "too-many-jobs")
        assert submit(client, document, **{"Idempotency-Key": "k"}).json()["id"] == first
        client.post(f"/v1/jobs/{first}/cancel")
        assert submit(client, document).status_code == 201


def test_what_was_asked_by_clients_that_hung_up_is_not_checked(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, checked = threading.Event(), []

    def slow(spec: JobSpec, *others: Any) -> JobPlan:
        checked.append(spec.name)
        assert gate.wait(DEADLINE_S)
        return read_and_check(spec, *others)

    monkeypatch.setattr("weft_server.submissions.read_and_check", slow)
    with running(tmp_path / "server", concurrent_checks=1, waiting_checks=3) as client:
        url = f"{client.base_url}/v1/jobs?dry_run=true"

        def hang_up(name: str) -> None:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url, json={**document, "name": name}, timeout=httpx.Timeout(DEADLINE_S, read=0.5))

        patient = threading.Thread(target=httpx.post, args=(url,), kwargs={"json": document, "timeout": DEADLINE_S})
        patient.start()
        eventually(lambda: checked, "the first check has begun")
        leaving = [threading.Thread(target=hang_up, args=(f"left-{number}",)) for number in range(3)]
        for each in leaving:
            each.start()
        for each in leaving:
            each.join(DEADLINE_S)
        gate.set()
        assert submit(client, {**document, "name": "last"}).status_code == 201
        patient.join(DEADLINE_S)
    assert checked == ["linear", "last"]


def test_submitted_jobs_that_wait_take_so_many_bytes_and_one_user_half_of_them(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, began = threading.Event(), []

    def slow(spec: JobSpec, *others: Any) -> JobPlan:
        began.append(spec.name)
        assert gate.wait(DEADLINE_S)
        return read_and_check(spec, *others)

    monkeypatch.setattr("weft_server.submissions.read_and_check", slow)
    body = json.dumps(document).encode()
    settings: dict[str, Any] = {"token": "the-admin-of-these-tests", "agent_token": "the-agents-of-these-tests"}
    settings["submitted_bytes"] = 4 * len(body)
    with running(tmp_path / "server", **settings) as client, ThreadPoolExecutor(5) as others:
        client.headers["Authorization"] = f"Bearer {settings['token']}"
        tokens = {
            user: client.post("/v1/tokens", json={"name": user, "scope": "runner", "project": "red"}).json()["token"]
            for user in ("ann", "ben")
        }

        def sent(user: str, content: bytes | Iterator[bytes] = body) -> httpx.Response:
            # However it is spelt, a token is one user's.
            headers = {"Authorization": f"bearer   {tokens[user]}", "Content-Type": "application/json"}
            return client.post("/v1/jobs", content=content, headers=headers)

        held = [others.submit(sent, "ann") for _ in range(2)]
        eventually(lambda: began, "one of them is checked")
        # The other waits, or is about to: what a body of unknown length may have is more than is left.
        refused = sent("ann", iter([body]))
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (
            503,
            "too-many-checks",
            "1",
        )
        assert client.get("/v1/jobs").json() == {"jobs": [], "next": None}
        held.append(others.submit(sent, "ben"))
        eventually(lambda: len(began) == 2, "another user's is checked")
        gate.set()
        assert [each.result().status_code for each in held] == [201] * 3
        eventually(lambda: sent("ann", iter([body])).status_code == 201, "there is room again")


def test_a_large_job_is_checked_in_a_process_of_its_own(tmp_path: Path, document: dict[str, Any]) -> None:
    """Spaces make it large: it is the same job."""
    room = b" " * SMALL_BYTES
    with running(tmp_path / "server", job_nodes=2) as client:

        def sent(content: bytes, path: str = "/v1/jobs") -> httpx.Response:
            return client.post(path, content=content, headers={"Content-Type": "application/json"})

        small, large = (sent(json.dumps(document).encode() + end).json()["id"] for end in (b"", room))
        for path in ("spec", "parameters", "programs", "programs?format=text", "programs?format=passes"):
            assert client.get(f"/v1/jobs/{small}/{path}").content == client.get(f"/v1/jobs/{large}/{path}").content
        small, large = (sent(json.dumps(document).encode() + end, "/v1/jobs?dry_run=true") for end in (b"", room))
        assert small.json() == large.json()
        assert sent(b'{"name":' + room).json()["code"] == "malformed-json"
        assert sent(b'{"a": 1, "a": 1' + room + b"}").json()["code"] == "repeated-key"
        wrong = sent(json.dumps({**document, "seed": "x"}).encode() + room)
        assert (wrong.json()["code"], wrong.json()["errors"][0]["pointer"]) == ("invalid-request", "/seed")
        wrong = sent(json.dumps({**document, "loss": "none"}).encode() + room)
        assert (wrong.json()["code"], wrong.json()["errors"][0]["pointer"]) == ("job-refused", "/loss")
        document["graph"]["nodes"] *= 2
        for end in (b"", room):
            many = sent(json.dumps(document).encode() + end).json()
            assert many["detail"] == "the graph has 4 nodes; at most 2 are taken here"


def test_a_job_whose_check_takes_too_long_is_refused_and_the_next_one_is_checked(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(spec: JobSpec, *others: Any) -> JobPlan:
        while spec.name == "slow":
            pass
        return read_and_check(spec, *others)

    monkeypatch.setattr("weft_server.submissions.read_and_check", slow)
    with running(tmp_path / "server", concurrent_checks=1, check_seconds=0.2) as client:
        for query in ("", "?dry_run=true"):
            late = client.post(f"/v1/jobs{query}", json={**document, "name": "slow"})
            assert (late.status_code, late.json()["errors"][0]["pointer"]) == (422, "/graph")
            assert "more than 0.2 s" in late.json()["detail"]
        monkeypatch.setattr("weft_server.submissions.read_and_check", read_and_check)
        assert submit(client, document).status_code == 201
