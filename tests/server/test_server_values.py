"""Values that are set, brought beforehand and begun with, by hand-played agents over HTTP."""

from __future__ import annotations

import asyncio
import os
import pkgutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from server_control import World
from server_hands import B, Hand, W, refused
from server_running import DEADLINE_S, cast, eventually, running, state, submit
from server_specs import CLASSES, FEATURES, save_rows, spec_json
from weft.api.agent import AgentKind
from weft.api.lifecycle import AllocationEvent, JobState
from weft.api.token import DEFAULT_PROJECT
from weft.api.values import upload_id
from weft_server.control.instructions import Instruction
from weft_server.keeper_values import KeeperSilentError, KeeperValues
from weft_server.notify import Notifier
from weft_server.refusals import FullError, UnknownError
from weft_server.storage.job_files import JobFiles, Reservations
from weft_server.storage.uploads import Uploads
from weft_server.threads import Threads
from weft_server.users import Party

ANN = Party("one", "ann")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "server", lost_after_s=DEADLINE_S) as client:
        yield client


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return spec_json(save_rows(tmp_path / "rows.npz"), parallelism={"workers": 1, "shards": 1})


@contextmanager
def setting(client: httpx.Client, job: str, content: bytes) -> Iterator[list[httpx.Response]]:
    """A call that sets values, under way; its answer is in the list at the end."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(put(client, job, content)))
    thread.start()
    try:
        yield answers
    finally:
        thread.join(DEADLINE_S)


def put(client: httpx.Client, job: str, content: bytes) -> httpx.Response:
    return client.put(f"/v1/jobs/{job}/values", content=content)


def test_values_of_a_running_job_are_set_by_its_keeper_which_says_from_when_on(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path
) -> None:
    hand = Hand(client)
    job = submit(client, document).json()["id"]
    mine = hand.run()
    with setting(client, job, save({"b": B})) as answers:
        eventually(lambda: hand.orders(hand.worker)["sets"], "the keeper is to set them")
        assert hand.orders(hand.worker)["sets"] == [{"allocation": mine["id"], "number": 1}]
        brought = hand.get(mine, "sets/1")
        assert load(brought.content).keys() == {"b"}
        np.testing.assert_array_equal(load(brought.content)["b"], B)
        assert answers == []
        hand.report(mine, step=2, sets=[{"number": 1, "step": 3}])
    assert (answers[0].status_code, answers[0].json()) == (200, {"names": ["b"], "step": 3})
    assert hand.orders(hand.worker)["sets"] == []
    refused(hand.get(mine, "sets/1"), 409, "not-wanted")
    log = client.get(f"/v1/jobs/{job}/events", params={"format": "json"}).json()["events"]
    assert log[-1]["body"]["message"] == "'b' was set after step 3"
    assert not list((tmp_path / "server" / "jobs" / job).glob("given-*"))


def test_what_the_keeper_could_not_set_is_said_with_its_reason(client: httpx.Client, document: dict[str, Any]) -> None:
    hand = Hand(client)
    job = submit(client, document).json()["id"]
    mine = hand.run()
    with setting(client, job, save({"b": B})) as answers:
        eventually(lambda: hand.orders(hand.worker)["sets"], "the keeper is to set them")
        hand.report(mine, sets=[{"number": 1, "step": 0, "error": "no step is left"}])
    assert refused(answers[0], 409, "values-not-set").detail == "the values were not set: no step is left"


def test_a_keeper_that_does_not_set_in_time_is_named_and_the_order_taken_back(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    with running(tmp_path / "late", lost_after_s=DEADLINE_S, values_deadline_s=0.2) as client:
        hand = Hand(client)
        job = submit(client, document).json()["id"]
        mine = hand.run()
        late = refused(put(client, job, save({"b": B})), 504, "keeper-silent")
        assert "worker-0 (worker 0), the keeper, did not set the parameters within 0.2 s" in late.detail
        assert hand.orders(hand.worker)["sets"] == []
        hand.report(mine, sets=[{"number": 1, "step": 4}])
        log = client.get(f"/v1/jobs/{job}/events", params={"format": "json"}).json()["events"]
        assert "has carried out set 1 though it was given up, at step 4" in log[-1]["body"]["message"]


def test_who_waits_no_longer_for_values_of_a_running_job_takes_them_from_nobody_else(tmp_path: Path) -> None:
    world = World()
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    brought = tmp_path / "live.safetensors"

    async def apply(instructions: Sequence[Instruction]) -> None:
        world.carry_out(instructions)

    async def scenario() -> None:
        threads, notifier = Threads(), Notifier()
        values = KeeperValues(
            world.controller,
            JobFiles(tmp_path),
            threads=threads,
            notifier=notifier,
            apply=apply,
            clock=lambda: world.now,
        )
        patient = asyncio.create_task(values.live("job", DEADLINE_S))
        await asyncio.sleep(0)
        with pytest.raises(KeeperSilentError):
            await values.live("job", 0.001)
        keeper = world.lease(AgentKind.WORKER, 0)
        assert world.orders(keeper.agent).upload == [keeper.id]
        await values.keep(keeper.id, keeper.term, 1, False, lambda: brought)
        assert await patient == (brought, 1)
        await threads.stop()

    asyncio.run(scenario())


def test_a_job_that_ends_while_values_are_to_be_set_says_so(client: httpx.Client, document: dict[str, Any]) -> None:
    hand = Hand(client)
    job = submit(client, document).json()["id"]
    hand.run()
    with setting(client, job, save({"b": B})) as answers:
        eventually(lambda: hand.orders(hand.worker)["sets"], "the keeper is to set them")
        client.post(f"/v1/jobs/{job}/cancel")
    assert "nothing was set" in refused(answers[0], 409, "wrong-state").detail


def test_values_set_while_a_job_is_pending_become_its_first_ones_and_add_up(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    job = submit(client, document).json()["id"]
    assert put(client, job, save({"b": 2 * B, "w": W})).json() == {"names": ["w", "b"], "step": 0}
    assert put(client, job, save({"b": 3 * B})).json() == {"names": ["b"], "step": 0}
    hand = Hand(client)
    mine = hand.start()
    assert mine["given"] == ["w", "b"]
    assert {key["initializer"]["op_type"] for key in mine["store"]["keys"]} == {"Given"}
    given = load(hand.get(mine, "given").content)
    np.testing.assert_array_equal(given["w"], W)
    np.testing.assert_array_equal(given["b"], 3 * B)
    stale = client.get(f"/v1/allocations/{mine['id']}/given", params={"term": mine["term"] + 1})
    refused(stale, 409, "stale-term")


def test_first_values_that_the_records_refuse_for_a_moment_are_kept(
    client: httpx.Client, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(client, document).json()["id"]
    with monkeypatch.context() as patched:
        patched.setattr("weft_server.storage.records.Records.carry_out", Mock(side_effect=OSError("no room")))
        refused(put(client, job, save({"b": B})), 503, "records-unavailable")
    eventually(lambda: put(client, job, save({"w": W})).status_code == 200, "the records take values again")
    hand = Hand(client)
    given = load(hand.get(hand.start(), "given").content)
    np.testing.assert_array_equal(given["w"], W)
    np.testing.assert_array_equal(given["b"], B)


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch, place: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The next call of the function sets the first event, and waits for the second one."""
    reached, go_on = threading.Event(), threading.Event()
    really = pkgutil.resolve_name(place)

    def slow(*arguments: Any) -> Any:
        if not reached.is_set():
            reached.set()
            go_on.wait(2 * DEADLINE_S)  # longer than a call takes to fail
        return really(*arguments)

    monkeypatch.setattr(place, slow)
    try:
        yield reached, go_on
    finally:
        go_on.set()


def test_no_job_waits_while_values_of_another_are_put_together(
    client: httpx.Client, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (submit(client, document).json()["id"] for _ in range(2))
    put(client, first, save({"b": B}))
    joined = "weft_server.storage.job_files.join"
    with held_up(monkeypatch, joined) as (reached, go_on), setting(client, first, save({"w": W})) as answers:
        assert reached.wait(DEADLINE_S)
        for content in (save({"b": B}), save({"w": W})):
            assert put(client, second, content).status_code == 200
        go_on.set()
    assert answers[0].json() == {"names": ["w"], "step": 0}


@pytest.mark.parametrize("slow", ["weft_server.storage.job_files.delete", "weft_server.service.tidy"])
def test_no_job_waits_while_files_and_snapshots_of_another_are_deleted(
    client: httpx.Client, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, slow: str, tmp_path: Path
) -> None:
    jobs = [submit(client, document).json()["id"] for _ in range(2)]
    for job in jobs:
        put(client, job, save({"b": B}))
    with held_up(monkeypatch, slow) as (reached, go_on):
        client.post(f"/v1/jobs/{jobs[0]}/cancel")
        assert reached.wait(DEADLINE_S)
        client.post(f"/v1/jobs/{jobs[1]}/cancel")
        assert client.delete(f"/v1/jobs/{jobs[1]}").status_code == 204
        go_on.set()
    assert client.delete(f"/v1/jobs/{jobs[0]}").status_code == 204
    folder = tmp_path / "server"
    assert not list((folder / "jobs").iterdir())
    eventually(lambda: not list((folder / "deleted").iterdir()), "all is deleted")


def test_only_what_was_given_is_set_before_the_first_step(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    put(client, job, save({"b": B}))
    mine = Hand(client).start()
    assert mine["given"] == ["b"]
    made = {key["key"]: key["initializer"]["op_type"] for key in mine["store"]["keys"]}
    assert made == {"w": "RandomUniform", "b": "Given"}


@pytest.mark.parametrize(
    ("content", "pointers"),
    [
        (save({"b": B, "z": B}), ["/z"]),
        (save({"b": W, "w": B}), ["/b", "/w"]),
        (save({"b": B.astype(np.float64)}), ["/b"]),
        (save({"weft.state/mean/b": B}), ["/weft.state~1mean~1b"]),
        (save({}), []),
        (b"", []),
        (b"\xff" * 64, []),
        ((1 << 60).to_bytes(8, "little") + b"{}", []),
        ((1 << 17).to_bytes(8, "little") + b'{"a":' + b"[" * (1 << 16), []),
        (save({"b": B})[:-1], []),
        (save({"b": B}) + b"more", []),
    ],
)
def test_documents_that_are_not_of_the_jobs_parameters_are_refused_with_pointers(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path, content: bytes, pointers: list[str]
) -> None:
    job = submit(client, document).json()["id"]
    problem = refused(put(client, job, content), 422, "wrong-values")
    assert [error.pointer for error in problem.errors] == pointers
    assert list((tmp_path / "server" / "jobs" / job).iterdir()) == []


def test_more_than_a_jobs_values_can_take_is_not_read(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    refused(put(client, job, b"\0" * (1 << 20)), 413, "too-large")

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"\0" * 4096

    chunked = client.put(f"/v1/jobs/{job}/values", content=endless())
    refused(chunked, 413, "too-large")


def test_an_ended_job_is_not_set_and_the_answer_says_what_to_do(client: httpx.Client, document: dict[str, Any]) -> None:
    refused(put(client, "none", save({"b": B})), 404, "unknown-job")
    job = submit(client, document).json()["id"]
    client.post(f"/v1/jobs/{job}/cancel")
    assert "init_from" in refused(put(client, job, save({"b": B})), 409, "wrong-state").detail


def test_a_job_begins_with_the_values_of_one_that_has_succeeded_also_when_those_are_gone(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path
) -> None:
    hand = Hand(client)
    source = submit(client, document).json()["id"]
    hand.end(hand.run())
    eventually(lambda: state(client, source) == "succeeded", "the source succeeds")
    second = submit(client, {**document, "init_from": {"job": source}})
    assert second.status_code == 201, second.text
    (tmp_path / "server" / "jobs" / source / "parameters.safetensors").unlink()
    mine = hand.start()
    assert mine["given"] == ["w", "b"]
    np.testing.assert_array_equal(load(hand.get(mine, "given").content)["w"], W)
    says = f"the values of job {source} are not on the server's disk any more: their file was deleted"
    assert refused(client.get(f"/v1/jobs/{source}/values"), 410, "values-deleted").detail == says
    third = refused(submit(client, {**document, "init_from": {"job": source}}), 422, "job-refused")
    assert [(error.pointer, error.detail) for error in third.errors] == [("/init_from/job", says)]


def test_a_job_begins_with_what_a_running_one_has_now(client: httpx.Client, document: dict[str, Any]) -> None:
    pair = {**document, "parallelism": {"workers": 1, "shards": 1}}
    with cast(client, workers=2, stop_at=AllocationEvent.RUNNING) as (workers, _):
        source = submit(client, pair).json()["id"]
        eventually(lambda: state(client, source) == "running", "the source runs")
        second = submit(client, {**pair, "init_from": {"job": source}})
        assert second.status_code == 201, second.text
        told = [each for worker in workers for orders in worker.orders for each in orders.allocations]
        eventually(
            lambda: any(
                getattr(each, "given", None) == ["w", "b"]
                for worker in workers
                for orders in worker.orders
                for each in orders.allocations
            ),
            "the second job's keeper is to set its first values",
        )
        assert told


def test_a_job_begins_with_an_upload_and_keeps_its_own_copy(client: httpx.Client, document: dict[str, Any]) -> None:
    brought = client.post("/v1/uploads", content=save({"b": 5 * B, "other": W}))
    assert brought.status_code == 201
    upload = brought.json()
    assert sorted(upload["names"]) == ["b", "other"]
    job = submit(client, {**document, "init_from": {"upload": upload["id"]}})
    assert job.status_code == 201, job.text
    told = "starts with uploaded values of 1 of its 2 parameters; 'w' is initialized as the graph says"
    assert job.json()["beginning"] == told
    log = client.get(f"/v1/jobs/{job.json()['id']}/events", params={"format": "json"}).json()["events"]
    assert f"the job {told}" in [event["body"].get("message") for event in log]
    assert client.delete(f"/v1/uploads/{upload['id']}").status_code == 204
    refused(client.delete(f"/v1/uploads/{upload['id']}"), 404, "unknown-upload")
    hand = Hand(client)
    mine = hand.start()
    assert mine["given"] == ["b"]
    given = load(hand.get(mine, "given").content)
    assert given.keys() == {"b"}
    np.testing.assert_array_equal(given["b"], 5 * B)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"other": B}, "none of its 1 parameters is one of the job's 2, by their names, such as 'other' and 'w', 'b'"),
        ({"w": W.T.copy(), "b": B}, "parameter 'w' is F32[3, 4], the job's is F32[4, 3]"),
    ],
)
def test_an_upload_that_does_not_fit_is_refused_and_leaves_nothing(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path, arrays: dict[str, np.ndarray], says: str
) -> None:
    upload = client.post("/v1/uploads", content=save(arrays)).json()["id"]
    problem = refused(submit(client, {**document, "init_from": {"upload": upload}}), 422, "job-refused")
    assert [(error.pointer, error.detail) for error in problem.errors] == [("/init_from", says)]
    assert list((tmp_path / "server" / "jobs").iterdir()) == []


def test_sources_that_have_no_values_are_refused_by_pointer(client: httpx.Client, document: dict[str, Any]) -> None:
    pending = submit(client, document).json()["id"]
    cancelled = submit(client, document).json()["id"]
    client.post(f"/v1/jobs/{cancelled}/cancel")
    for source, pointer, says in (
        ({"job": "none"}, "/init_from/job", "there is no job 'none'"),
        ({"upload": "none"}, "/init_from/upload", "there is no upload 'none'"),
        ({"job": pending}, "/init_from/job", "is pending: it has no parameters yet"),
        ({"job": cancelled}, "/init_from/job", "was cancelled, so it has no values"),
    ):
        problem = refused(submit(client, {**document, "init_from": source}), 422, "job-refused")
        assert problem.errors[0].pointer == pointer
        assert says in problem.errors[0].detail
    traversal = submit(client, {**document, "init_from": {"upload": "../jobs/x"}})
    refused(traversal, 422, "invalid-request")


def test_uploads_expire_are_bounded_and_hostile_ones_are_refused(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_server.storage.uploads.MOST_UPLOADS", 2)
    with running(tmp_path / "few", upload_bytes=1 << 16, upload_hours=1e-9) as client:
        for content in (b"", save({}), b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"):
            refused(client.post("/v1/uploads", content=content), 422, "wrong-values")
        refused(client.post("/v1/uploads", content=b"\0" * (1 << 17)), 413, "too-large")
        upload = client.post("/v1/uploads", content=save({"b": B})).json()["id"]
        late = submit(client, {**document, "init_from": {"upload": upload}})
        assert refused(late, 422, "job-refused").errors[0].detail == f"there is no upload {upload!r}"
        assert client.post("/v1/uploads", content=save({"b": B})).status_code == 201, "expired ones make room"


def test_an_upload_that_is_brought_again_replaces_the_first_and_one_of_other_values_does_not(tmp_path: Path) -> None:
    first, other = save({"b": B}), save({"w": W})
    (tmp_path / "first").write_bytes(first)
    with running(tmp_path / "server") as client:
        made = [
            client.post("/v1/uploads", content=each, headers={"Idempotency-Key": "k"}).json()["id"]
            for each in (first, first, other)
        ]
        assert made[:2] == [upload_id("k", tmp_path / "first")] * 2
        assert {each["id"] for each in client.get("/v1/uploads").json()["uploads"]} == set(made)
        assert len(set(made)) == 2


def test_one_project_leaves_room_for_the_uploads_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, now = save({"b": B}), datetime.now(UTC)
    reservations = Reservations()
    uploads = Uploads(tmp_path, 1.0, 4 * len(content), reservations)

    def bring(name: str, project: str) -> None:
        upload = uploads.start(name, now, project, ANN)
        upload.file.write(content)
        try:
            uploads.keep(upload, name, now, project)
        finally:
            upload.discard()
            reservations.pop(upload.path, None)

    for name in "abc":
        bring(name, "one")
    with pytest.raises(FullError, match=rf"there are {3 * len(content)} bytes of uploads of project one already"):
        bring("d", "one")
    bring("d", "two")
    with pytest.raises(FullError, match=rf"there are {4 * len(content)} bytes of uploads already"):
        bring("e", "two")
    monkeypatch.setattr("weft_server.storage.uploads.MOST_OF_PROJECT", 3)
    with pytest.raises(FullError, match="there are 3 uploads of project one already"):
        bring("f", "one")


def test_one_project_leaves_others_places_to_bring_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_server.storage.uploads.MOST_AT_ONCE", 4)
    reservations, now = Reservations(), datetime.now(UTC)
    uploads = Uploads(tmp_path, 1.0, 1 << 30, reservations)
    started = [uploads.start(name, now, "one", ANN) for name in "abc"]
    with pytest.raises(FullError, match="there are 3 unfinished uploads of project one already"):
        uploads.start("d", now, "one", ANN)
    started.append(uploads.start("e", now, "two", ANN))
    with pytest.raises(FullError, match="there are 4 unfinished uploads already"):
        uploads.start("f", now, "two", ANN)
    reservations.clear()
    started.append(uploads.start("d", now, "one", ANN))
    for upload in started:
        upload.discard()


def test_an_upload_that_is_deleted_as_uploads_are_looked_at_is_left_out(tmp_path: Path) -> None:
    uploads, now = Uploads(tmp_path, 1.0, 1 << 30, Reservations()), datetime.now(UTC)
    upload = uploads.start("a", now, DEFAULT_PROJECT, ANN)
    upload.file.write(save({"b": B}))
    (tmp_path / "uploads" / "gone.safetensors").symlink_to("nowhere")  # it is listed, and then it is not there
    kept = uploads.keep(upload, "a", now)
    assert [each.id for each in uploads.describe(now).uploads] == [kept.id]
    with pytest.raises(UnknownError):
        uploads.find("gone", now)


def test_uploads_that_have_not_expired_make_room_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_server.storage.uploads.MOST_UPLOADS", 3)
    content = save({"b": B})
    folder = tmp_path / "few" / "uploads"

    def bring() -> str:
        return str(client.post("/v1/uploads", content=content).json()["id"])

    def age(upload: str, minutes: float) -> None:
        path = folder / f"{upload}.safetensors"
        then = path.stat().st_mtime - 60 * minutes
        os.utime(path, (then, then))

    with running(tmp_path / "few", uploads_bytes=4 * len(content)) as client:
        (folder / ".upload-left-over").write_bytes(content)
        first, second, third = bring(), bring(), bring()
        full = refused(client.post("/v1/uploads", content=content), 503, "too-many-uploads")
        assert "there are 3 uploads already" in full.detail
        age(second, 20)
        refused(client.post("/v1/uploads", content=content), 503, "too-many-uploads")
        age(third, 10 * 60)  # It has expired.
        fourth = bring()
        shown = client.get("/v1/uploads").json()["uploads"]
        assert [each["id"] for each in shown] == [second, first, fourth]
        assert {each["size_bytes"] for each in shown} == {len(content)}
        client.delete(f"/v1/uploads/{second}")
        larger = save({"b": np.zeros(1 + B.size, B.dtype)})
        refused(client.post("/v1/uploads", content=larger), 503, "too-many-uploads")
        assert client.post("/v1/uploads", content=content).status_code == 201


def test_the_rules_state_is_kept_where_it_was_asked_for_and_given_only_when_asked(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    hand = Hand(client)
    momentum = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    job = submit(client, {**document, "optimizer": momentum, "keep_state": True}).json()["id"]
    mine = hand.run()
    assert mine["keep_state"]
    state_of = {f"weft.state/momentum/{name}": array for name, array in (("w", W), ("b", B))}
    path, query = f"/v1/allocations/{mine['id']}/parameters", {"term": mine["term"], "step": 6, "final": True}
    for wrong in ({}, {"weft.state/momentum/w": W}, {**state_of, "weft.state/momentum/b": W}, {**state_of, "z": B}):
        refused(client.put(path, params=query, content=save({"w": W, "b": B, **wrong})), 422, "wrong-values")
    hand.end(mine, **state_of)
    eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
    get = client.get(f"/v1/jobs/{job}/values")
    assert load(get.content).keys() == {"w", "b"}
    both = client.get(f"/v1/jobs/{job}/values", params={"state": True})
    assert load(both.content).keys() == {"w", "b", *state_of}
    one = client.get(f"/v1/jobs/{job}/values", params={"state": True, "name": "b"})
    assert load(one.content).keys() == {"b", "weft.state/momentum/b"}
    follower = submit(client, {**document, "init_from": {"job": job}})
    assert follower.status_code == 201


def test_an_optimizer_that_keeps_no_state_has_its_values_alone(client: httpx.Client, document: dict[str, Any]) -> None:
    hand = Hand(client)
    job = submit(client, {**document, "optimizer": {"name": "sgd", "lr": 0.1}, "keep_state": True}).json()["id"]
    hand.end(hand.run())
    eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
    assert load(client.get(f"/v1/jobs/{job}/values", params={"state": True}).content).keys() == {"w", "b"}


def test_state_that_is_not_kept_cannot_be_asked_for(client: httpx.Client, document: dict[str, Any]) -> None:
    job = submit(client, document).json()["id"]
    refused(client.get(f"/v1/jobs/{job}/values", params={"state": True}), 409, "wrong-state")


def test_traffic_is_added_up_over_slots_from_what_they_have_told_last(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    hand = Hand(client)
    job = submit(client, document).json()["id"]
    mine = hand.run()
    for sent in (10, 30):
        hand.report(mine, step=1, traffic={"sent_bytes": sent, "received_bytes": 2 * sent})
    hand.end(mine)
    eventually(lambda: state(client, job) == "succeeded", "the job succeeds")
    assert client.get(f"/v1/jobs/{job}").json()["traffic"] == {"sent_bytes": 30, "received_bytes": 60}


def test_a_dry_run_says_what_a_job_would_be_and_keeps_nothing(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path
) -> None:
    upload = client.post("/v1/uploads", content=save({"b": B})).json()["id"]
    asked = {**document, "init_from": {"upload": upload}, "optimizer": {"name": "adam"}}
    response = client.post("/v1/jobs", params={"dry_run": True}, json=asked, headers={"Idempotency-Key": "k"})
    assert response.status_code == 200, response.text
    run = response.json()
    assert (run["steps"], run["given"], run["optimizer"]) == (6, ["b"], "adam")
    kept = 4 * (FEATURES * CLASSES + CLASSES)
    assert run["store_memory"]["parameter_bytes"] == kept
    assert run["store_memory"]["state_bytes"] == 2 * kept
    assert run["step_traffic"] == {
        "fetched_bytes": kept,
        "sent_bytes": kept,
        "fetched_row_bytes": 0,
        "sent_row_bytes": 0,
    }
    assert run["waits_for"] == "needs 1 shard; 0 are registered: start 1 more (python -m weft_kvstore --server URL)"
    assert run["programs"].keys() >= {"train", "evaluate", "keys"}
    assert "Gemm" in run["text"]
    assert client.get("/v1/jobs").json()["jobs"] == []
    assert list((tmp_path / "server" / "jobs").iterdir()) == []
    Hand(client)
    assert client.post("/v1/jobs", params={"dry_run": True}, json=asked).json()["waits_for"] is None
    wrong = client.post("/v1/jobs", params={"dry_run": True}, json={**document, "loss": "no"})
    assert refused(wrong, 422, "job-refused").errors[0].pointer == "/loss"


def test_final_values_that_are_deleted_before_the_job_has_succeeded_are_brought_again(tmp_path: Path) -> None:
    with running(tmp_path / "server", lost_after_s=60.0) as client:
        hand = Hand(client)
        on_one = {"workers": 1, "shards": 1}
        document = spec_json(save_rows(tmp_path / "rows.npz"), parallelism=on_one, max_restarts=1)
        job = submit(client, document).json()["id"]
        first = hand.run()
        query = {"term": first["term"], "step": 6, "final": True}
        path = f"/v1/allocations/{first['id']}/parameters"
        assert client.put(path, params=query, content=save({"w": W, "b": B})).status_code == 204
        (tmp_path / "server" / "jobs" / job / "parameters.safetensors").unlink()
        eventually(lambda: hand.allocation(hand.worker)["incarnation"] == 2, "another process takes the place")
        again = hand.allocation(hand.worker)
        for event in ("ready", "running"):
            hand.report(again, event=event)
        hand.end(again)
        assert client.get(f"/v1/jobs/{job}/values").status_code == 200
