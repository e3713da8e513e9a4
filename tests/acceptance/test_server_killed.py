"""The server killed with -9 and started again: jobs go on, nobody notices but by refused connections."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

import weft
from acceptance_processes import await_that
from server_specs import save_rows, spec_json
from weft.api.event import Event, StateChanged, StepDone
from weft.api.lifecycle import JobState

DEADLINE_S = 60.0
STEPS = 400
OUTAGE_S = 1.5
"""Longer than what is left of a run takes once the server is killed in its last steps."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[weft.Cluster]:
    root = tmp_path_factory.mktemp("killed")
    save_rows(root / "rows.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_SERVER_LOST_AFTER_S", "5")  # Nobody tells the server of what is killed here.
        with weft.Cluster(workers=2, shards=2, data_root=root) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def document(cluster: weft.Cluster) -> dict[str, Any]:
    run = {"steps": STEPS, "evaluate_every": STEPS // 4}
    return spec_json(Path("rows.npz"), run=run, parallelism={"workers": 2, "shards": 2})


def end(cluster: weft.Cluster, name: str) -> None:
    process = next(process for process in cluster.processes if process.name == name)
    os.kill(process.pid, signal.SIGKILL)
    await_that(lambda: process.exit_code is not None, f"{name} to end", DEADLINE_S)


def kill(cluster: weft.Cluster, outage_s: float = 0.0) -> None:
    """Kills the server, and starts it again after the outage."""
    end(cluster, "server")
    threading.Event().wait(outage_s)
    cluster.restart("server")
    await_that(cluster.listens, "the server to listen again", DEADLINE_S)


def submitted(client: httpx.Client, document: dict[str, Any]) -> str:
    response = client.post("/v1/jobs", json=document)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


class Follower:
    """Reads a job's stream to its end, from where it broke off with `Last-Event-ID`."""

    def __init__(self, url: str, job: str) -> None:
        self.events: list[Event] = []
        self.broken = 0
        self._reached = threading.Condition()
        self._thread = threading.Thread(target=self._follow, args=(url, job), daemon=True)
        self._thread.start()

    def await_step(self, step: int) -> None:
        with self._reached:
            assert self._reached.wait_for(lambda: self._step() >= step, DEADLINE_S), f"step {step} is not told"

    def join(self) -> list[Event]:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the stream ends"
        return self.events

    def _step(self) -> int:
        return max((each.body.step for each in self.events if isinstance(each.body, StepDone)), default=-1)

    def _follow(self, url: str, job: str) -> None:
        while not (self.events and is_end(self.events[-1])):
            newest = {"Last-Event-ID": str(self.events[-1].seq)} if self.events else {}
            try:
                with httpx.stream("GET", f"{url}/v1/jobs/{job}/events", headers=newest, timeout=DEADLINE_S) as stream:
                    for line in stream.iter_lines():
                        if line.startswith("data:"):
                            with self._reached:
                                self.events.append(Event.model_validate_json(line.removeprefix("data:")))
                                self._reached.notify_all()
            except httpx.TransportError:
                self.broken += 1
                threading.Event().wait(0.05)


def is_end(event: Event) -> bool:
    return isinstance(event.body, StateChanged) and event.body.state.is_terminal


def values(cluster: weft.Cluster, job: str) -> dict[str, np.ndarray]:
    response = httpx.get(f"{cluster.url}/v1/jobs/{job}/values")
    assert response.status_code == 200, response.text
    return load(response.content)


def check_whole(events: list[Event]) -> None:
    """No event is missing, doubled or out of order."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    states = [event.body.state for event in events if isinstance(event.body, StateChanged)]
    assert states == [
        JobState.PENDING,
        JobState.STARTING,
        JobState.RUNNING,
        JobState.FINISHING,
        JobState.SUCCEEDED,
    ], events[-1]


def test_a_job_outlives_a_server_that_is_killed_again_and_again(
    cluster: weft.Cluster, document: dict[str, Any]
) -> None:
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        plain = submitted(client, document)
        check_whole(Follower(cluster.url, plain).join())
        pids = {agent["pid"] for agent in client.get("/v1/agents").json()["agents"]}
        job = submitted(client, document)
        follower = Follower(cluster.url, job)
        kill(cluster)  # as it begins
        follower.await_step(STEPS // 2)
        kill(cluster, OUTAGE_S)  # it trains on and ends meanwhile: the keeper has to bring the values again
        events = follower.join()
    check_whole(events)
    assert follower.broken
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        assert {agent["pid"] for agent in client.get("/v1/agents").json()["agents"]} == pids

        def states() -> set[str]:
            return {agent["state"] for agent in client.get("/v1/agents").json()["agents"]}

        await_that(lambda: states() == {"alive"}, "all agents to be heard again", DEADLINE_S)
        shown = [client.get(f"/v1/jobs/{each}").json() for each in (plain, job)]
    assert shown[0]["metrics"] == shown[1]["metrics"]
    assert {each["progress"]["step"] for each in shown} == {STEPS}
    expected, found = values(cluster, plain), values(cluster, job)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_values_set_while_real_workers_run_hold_and_begin_other_jobs(
    cluster: weft.Cluster, document: dict[str, Any]
) -> None:
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        long = {**document, "run": {"steps": 1000 * STEPS}, "optimizer": {"name": "sgd", "lr": 1e-30}}
        job = submitted(client, {**long, "parallelism": {"workers": 1, "shards": 2}})
        Follower(cluster.url, job).await_step(1)
        given = np.full((4, 3), 7, np.float32)
        response = client.put(f"/v1/jobs/{job}/values", content=save({"w": given}))
        assert response.status_code == 200, response.text
        assert response.json()["step"] >= 1
        np.testing.assert_array_equal(values(cluster, job)["w"], given)
        short = {**long, "run": {"steps": 2}, "init_from": {"job": job}, "keep_state": True}
        follower = submitted(client, {**short, "parallelism": {"workers": 1, "shards": 1}})
        check_whole(Follower(cluster.url, follower).join())
        np.testing.assert_array_equal(values(cluster, follower)["w"], given)
        client.post(f"/v1/jobs/{job}/cancel")


def test_a_worker_that_ends_while_the_server_is_away_is_lost_as_usual(
    cluster: weft.Cluster, document: dict[str, Any]
) -> None:
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        job = submitted(client, {**document, "run": {"steps": 1000 * STEPS}})
        follower = Follower(cluster.url, job)
        follower.await_step(1)
        end(cluster, "server")
        end(cluster, "worker-1")
        cluster.restart("server")
        last = follower.join()[-1]
        assert isinstance(last.body, StateChanged)
        assert last.body.state is JobState.FAILED
        assert "worker-1" in (last.body.reason or "") or "slot 1" in (last.body.reason or "")
        cluster.restart("worker-1")
