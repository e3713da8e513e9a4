"""A job that goes on from another one's snapshot, by hand-played agents over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from server_control import World
from server_hands import Hand, refused
from server_running import DEADLINE_S, eventually, running, submit
from server_specs import plan, save_rows, spec_json
from weft.api.agent import AgentKind, Snapshot, SnapshotDone
from weft.api.lifecycle import AllocationEvent, JobState
from weft_server.control.limits import Limits
from weft_server.service import Service
from weft_server.storage.snapshot_files import newest

STEPS = 1_000_000
CONTENT = b"what the shard holds"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "server", lost_after_s=DEADLINE_S) as client:
        yield client


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    run = {"steps": STEPS, "evaluate_every": STEPS}
    parallelism = {"workers": 1, "shards": 1}
    return spec_json(save_rows(tmp_path / "rows.npz"), parallelism=parallelism, run=run, snapshot_every_s=0.1)


def cancelled(client: httpx.Client, document: dict[str, Any], hand: Hand) -> tuple[str, int]:
    """(job, step): a job that was cancelled, and the step of its snapshot."""
    job = submit(client, document).json()["id"]
    mine = hand.run()
    theirs = hand.allocation(hand.shard)
    hand.report(mine, step=50)
    eventually(lambda: hand.orders(hand.shard)["snapshots"], "a snapshot is ordered")
    (order,) = hand.orders(hand.shard)["snapshots"]
    folder = Path(order["folder"])
    folder.mkdir(parents=True)
    (folder / "shard-0.safetensors").write_bytes(CONTENT)
    file = {"name": "shard-0.safetensors", "nbytes": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
    hand.report(theirs, snapshot={"step": order["step"], "file": file})
    hand.report(mine, step=order["step"])
    eventually(lambda: client.get(f"/v1/jobs/{job}").json()["snapshot"] == order["step"], "the snapshot is kept")
    manifest = json.loads((folder / "snapshot.json").read_text())
    assert (manifest["job"], manifest["step"], manifest["files"]) == (job, order["step"], [{**file, "folder": ""}])
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 200
    return job, order["step"]


def test_a_job_goes_on_from_the_last_snapshot_of_one_that_has_ended(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    hand = Hand(client)
    job, step = cancelled(client, document, hand)
    answer = submit(client, {**document, "resume": job, "snapshot_every_s": None})
    assert answer.status_code == 201, answer.text
    assert (answer.json()["progress"]["step"], answer.json()["snapshot"]) == (step, step)
    snapshot = hand.allocation(hand.shard)["snapshot"]
    assert (snapshot["step"], [file["nbytes"] for file in snapshot["files"]]) == (step, [len(CONTENT)])
    assert (Path(snapshot["folder"]) / "shard-0.safetensors").read_bytes() == CONTENT
    assert hand.start()["snapshot"] == snapshot
    # It has taken no snapshot of its own, and still there is one to go on from.
    second = answer.json()["id"]
    assert client.post(f"/v1/jobs/{second}/cancel").status_code == 200
    third = submit(client, {**document, "resume": second})
    assert third.json()["snapshot"] == step


def test_a_job_goes_on_with_other_numbers_of_an_optimizer_that_is_a_graph(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    rmsprop = {"name": "rmsprop", "centered": True, "lr": 0.1}
    job, _ = cancelled(client, {**document, "optimizer": rmsprop}, Hand(client))
    answer = submit(client, {**document, "optimizer": {**rmsprop, "lr": 0.01}, "resume": job})
    assert answer.status_code == 201, answer.text
    other = {**rmsprop, "momentum": 0.5}
    problem = refused(submit(client, {**document, "optimizer": other, "resume": job}), 422, "job-refused")
    assert "that job's optimizer is another" in problem.detail


def test_a_job_goes_on_with_another_optimizer_that_keeps_the_same_state(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    job, _ = cancelled(client, {**document, "optimizer": {"name": "adam"}}, Hand(client))
    for same in ({"name": "adam", "weight_decay": 0.1}, {"name": "adamw"}):
        answer = submit(client, {**document, "optimizer": same, "resume": job})
        assert answer.status_code == 201, answer.text
    for other in ({"name": "adam", "amsgrad": True}, {"name": "lamb"}):
        problem = refused(submit(client, {**document, "optimizer": other, "resume": job}), 422, "job-refused")
        assert "that job's optimizer is another" in problem.detail


def test_what_cannot_be_resumed_is_refused_by_its_field(client: httpx.Client, document: dict[str, Any]) -> None:
    hand = Hand(client)
    job, step = cancelled(client, document, hand)
    never = submit(client, document).json()["id"]
    refusals: list[tuple[dict[str, Any], str, str]] = [
        ({"resume": "none"}, "/resume", "there is no job 'none'"),
        ({"resume": never}, "/resume", "it goes on by itself; scale it, or cancel it first"),
        ({"optimizer": {"name": "adam"}}, "/optimizer", "that job's optimizer is another"),
        ({"ema": {"decay": 0.9}}, "/ema", "no averages to go on with"),
        ({"parallelism": {"slice_bytes": 4096}}, "/parallelism/slice_bytes", "slices are of"),
        ({"parallelism": {"mode": "async"}}, "/resume", "its mode is async"),
        ({"run": {"steps": step}}, "/run", f"goes on from step {step}, and {step} steps in all were asked for"),
    ]
    for changes, pointer, says in refusals:
        problem = refused(submit(client, {**document, "resume": job, **changes}), 422, "job-refused")
        assert [error.pointer for error in problem.errors] == [pointer]
        assert says in problem.errors[0].detail
    client.post(f"/v1/jobs/{never}/cancel")
    ended = refused(client.post(f"/v1/jobs/{never}/stop"), 409, "wrong-state")
    assert ended.detail == f"job {never} was cancelled already: there is nothing to stop"
    problem = refused(submit(client, {**document, "resume": never}), 422, "job-refused")
    assert "was cancelled and left no snapshot to go on from: submit it again" in problem.errors[0].detail
    both = submit(client, {**document, "resume": job, "init_from": {"job": job}})
    assert (both.status_code, "give either init_from or resume" in both.text) == (422, True)


@pytest.mark.parametrize(
    ("lr", "steps", "told"),
    [
        ({"schedule": "cosine", "start": 0.1, "steps": 5, "warmup": {"steps": 2}}, 20, "from step 7 of 20 on"),
        ({"schedule": "cosine", "start": 0.1, "steps": 5, "warmup": {"steps": 2}}, 7, None),
        ({"schedule": "linear", "start": 0.1, "end": 0.01, "steps": 5}, 20, None),
        ({"schedule": "cosine", "start": 0.1, "steps": 5, "warmup": {"steps": 30}}, 20, None),
        (0.1, 20, None),
    ],
)
def test_a_job_says_from_which_step_on_its_schedule_leaves_it_without_a_learning_rate(
    client: httpx.Client, document: dict[str, Any], lr: object, steps: int, told: str | None
) -> None:
    job = submit(client, {**document, "optimizer": {"name": "sgd", "lr": lr}, "run": {"steps": steps}}).json()
    assert job.get("beginning") == (told and f"trains with lr 0 {told}, where its schedule ends")


def test_a_job_that_has_ended_is_removed_with_all_that_is_kept_of_it_and_no_other(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path
) -> None:
    hand = Hand(client)
    upload = client.post("/v1/uploads", content=save({"b": np.zeros(3, np.float32)})).json()["id"]
    job, step = cancelled(client, {**document, "init_from": {"upload": upload}}, hand)
    shown = client.get(f"/v1/jobs/{job}").json()
    (listed,) = client.get("/v1/jobs").json()["jobs"]
    assert listed == shown
    assert (shown["snapshot"], shown["snapshot_bytes"]) == (step, len(CONTENT))
    assert shown["file_bytes"] > 12, "its first values stay, for whoever submits it again"
    client.delete(f"/v1/uploads/{upload}")
    again = client.get(f"/v1/jobs/{job}/spec").json()
    other = submit(client, again).json()["id"]
    resumed = submit(client, {**document, "resume": job, "snapshot_every_s": None}).json()["id"]
    running = refused(client.delete(f"/v1/jobs/{other}"), 409, "wrong-state")
    assert running.detail == f"job {other} is starting: cancel it before it is removed (weft cancel {other})"
    needed = refused(client.delete(f"/v1/jobs/{job}"), 409, "wrong-state")
    assert needed.detail.startswith(f"job {resumed} goes on from the snapshot of job {job}: wait until")
    for each in (other, resumed):
        assert client.post(f"/v1/jobs/{each}/cancel").status_code == 200
    assert client.delete(f"/v1/jobs/{job}").status_code == 204
    refused(client.get(f"/v1/jobs/{job}"), 404, "unknown-job")
    refused(client.delete(f"/v1/jobs/{job}"), 404, "unknown-job")
    server = tmp_path / "server"
    assert not list(server.glob(f"*/{job}"))
    assert [each["id"] for each in client.get("/v1/jobs").json()["jobs"]] == [resumed, other]
    problem = refused(submit(client, {**document, "resume": resumed}), 422, "job-refused")
    assert "left no snapshot to go on from: submit it again" in problem.errors[0].detail


def test_a_snapshot_is_not_deleted_while_a_job_is_submitted_that_goes_on_from_it(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = cancelled(client, document, Hand(client))
    place = tmp_path / "server" / "snapshots" / job
    removing, answers = threading.Event(), []
    remove = Service.remove

    async def told(service: Service, job: str) -> None:
        removing.set()
        await remove(service, job)

    deletion = threading.Thread(target=lambda: answers.append(client.delete(f"/v1/jobs/{job}")))

    def found(location: str, job: str) -> Snapshot | None:
        snapshot = newest(location, job)
        deletion.start()
        assert removing.wait(DEADLINE_S)
        return snapshot

    monkeypatch.setattr(Service, "remove", told)
    monkeypatch.setattr("weft_server.routes.beginning.newest", found)
    resumed = submit(client, {**document, "resume": job, "snapshot_every_s": None})
    assert resumed.status_code == 201, resumed.text
    deletion.join(DEADLINE_S)
    needed = refused(answers[0], 409, "wrong-state")
    assert needed.detail.startswith(f"job {resumed.json()['id']} goes on from the snapshot of job {job}: wait until")
    assert [each for each in place.iterdir() if each.is_dir()]


def test_a_cancelled_job_keeps_its_snapshot_until_that_is_discarded(
    client: httpx.Client, document: dict[str, Any], tmp_path: Path
) -> None:
    job, step = cancelled(client, document, Hand(client))
    place = tmp_path / "server" / "snapshots" / job
    assert client.post(f"/v1/jobs/{job}/cancel").json()["snapshot"] == step
    assert [each.name.partition("-")[0] for each in place.iterdir() if each.is_dir()] == [str(step)]
    told = client.post(f"/v1/jobs/{job}/cancel", params={"discard": True}).json()
    assert (told["snapshot"], told["snapshot_bytes"], place.exists()) == (None, 0, False)


@pytest.mark.parametrize("setting", [{"ended_days": 1e-9}, {"ended_bytes": len(CONTENT) + 10}], ids=str)
def test_jobs_that_have_ended_go_by_themselves_where_the_settings_say_so(
    tmp_path: Path, document: dict[str, Any], setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_server.service.LOOK_INTERVAL_S", 0.05)
    with running(tmp_path / "server", lost_after_s=DEADLINE_S, **setting) as client:
        hand = Hand(client)
        first, _ = cancelled(client, document, hand)
        if "ended_days" in setting:
            eventually(lambda: client.get(f"/v1/jobs/{first}").status_code == 404, "the job is removed")
            return
        assert client.get(f"/v1/jobs/{first}").status_code == 200
        second, _ = cancelled(client, document, hand)
        eventually(lambda: client.get(f"/v1/jobs/{first}").status_code == 404, "the older one is removed")
        assert client.get(f"/v1/jobs/{second}").status_code == 200


def test_a_graph_with_other_parameters_is_refused_by_their_names(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    job, _ = cancelled(client, document, Hand(client))
    graph = json.loads(json.dumps(document["graph"]).replace('"b"', '"bias"'))
    problem = refused(submit(client, {**document, "graph": graph, "resume": job}), 422, "job-refused")
    assert [(error.pointer, error.node) for error in problem.errors] == [("/resume", "bias")]


def test_a_job_that_was_resumed_recovers_from_there_until_it_has_a_snapshot_of_its_own() -> None:
    world = World(Limits(snapshots="/snapshots", lost_after_s=5.0))
    other = Snapshot(step=40, folder="/snapshots/other/40-1", files=[])
    world.agents()
    world.submit(plan(steps=100, max_restarts=2, resume=other))
    world.bring_to(JobState.RUNNING)
    world.report(world.lease(AgentKind.SHARD, 0), AllocationEvent.FAILED, reason="killed", lost=True)
    assert "the job goes on from step 40: no step is done again; it can recover 1 more times" in world.said()
    (allocation,) = world.orders(world.lease(AgentKind.SHARD, 0).agent).allocations
    assert allocation.snapshot == other


def test_a_job_whose_first_snapshot_cannot_be_read_fails_by_its_name_and_does_not_begin_with_step_0() -> None:
    world = World(Limits(snapshots="/snapshots"))
    other = Snapshot(step=40, folder="/snapshots/other/40-1", files=[])
    world.agents()
    world.submit(plan(steps=100, max_restarts=2, resume=other))
    broken = SnapshotDone(step=40, error="its SHA-256 is another")
    shard = world.lease(AgentKind.SHARD, 0)
    world.report(shard, AllocationEvent.FAILED, reason="cannot begin", lost=True, snapshot=broken)
    job = world.jobs["job"]
    assert (job.state, "/snapshots/other/40-1" in (job.reason or "")) == (JobState.FAILED, True)
