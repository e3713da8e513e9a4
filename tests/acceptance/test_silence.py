"""Processes that stand still, a disk that is full, data that is written anew, a server that is killed with -9: a job
waits, and loses nothing."""

from __future__ import annotations

import os
import re
import resource
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
from acceptance_processes import await_that, family, standing_still
from server_specs import save_rows, spec_json
from weft import nn
from weft.api.event import Event, LogLine, StateChanged, StepDone
from weft.api.lifecycle import AgentState, JobState

STEPS = 1500
"""Some seconds: it is in the midst of them when its metrics are told for the first time."""
ROWS = 40_000
SHORT_STEPS = 400
OUTAGE_S = 1.5
"""Longer than what is left of a run takes once the server is killed in its last steps."""
LOST_S = 4.0
DEADLINE_S = 60.0
RECOVERY = weft.Recovery(keep_state=True, max_restarts=0)


class Place:
    """A cluster with short limits, a job, and the values that it comes to."""

    def __init__(self, cluster: weft.Cluster, client: weft.Client, root: Path) -> None:
        self.cluster, self.client, self.root = cluster, client, root
        draw = np.random.default_rng(0)
        self.rows = {"x": draw.standard_normal((ROWS, 8), dtype=np.float32), "y": draw.integers(0, 2, ROWS)}
        self.write_data()
        self.loss = nn.cross_entropy(
            nn.Linear(8, 2)(weft.input("x", ("batch", 8))), weft.input("y", ("batch",), "int64")
        )
        undisturbed = self.submit()
        undisturbed.wait(timeout_s=DEADLINE_S)
        self.expected = self.bits(undisturbed)

    def write_data(self) -> None:
        np.savez(self.root / "data.npz", **self.rows)

    def submit(self, **run: Any) -> weft.JobHandle:
        run = {"steps": STEPS, "workers": 1, "shards": 1, "recovery": RECOVERY} | run
        rows = {"train": run.pop("train", None), "evaluate": run.pop("evaluate", None)}
        data = weft.numpy_data("data.npz", columns={"x": "x", "y": "y"}, **rows)
        return self.client.submit(self.loss, data=data, optimizer=weft.Adam(), **run)

    def runs(self) -> weft.JobHandle:
        """A job in the midst of its steps."""
        job = self.submit()
        await_that(lambda: bool(job.refresh().metrics), "its metrics")
        return job

    def goes_on(self, job: weft.JobHandle) -> None:
        """To its end, without another beginning."""
        job.wait(timeout_s=DEADLINE_S)
        assert job.refresh().restarts == 0
        assert self.bits(job) == self.expected

    def bits(self, job: weft.JobHandle) -> dict[str, bytes]:
        return {name: value.tobytes() for name, value in job.values(state=True).items()}

    def said(self, job: weft.JobHandle) -> list[str]:
        return [event.body.message for event in job.log() if isinstance(event.body, LogLine)]

    def states(self) -> dict[str, AgentState]:
        return {agent.name: agent.state for agent in self.client.agents() if agent.state is not AgentState.LOST}

    def await_all(self) -> None:
        """Until the server hears all agents that run now."""

        def heard() -> set[int]:
            return {agent.pid for agent in self.client.agents() if agent.state is AgentState.ALIVE}

        running = {process.pid for process in self.cluster.processes[1:]}
        await_that(lambda: heard() >= running, "all agents")

    def family(self, *names: str) -> list[int]:
        return family(self.cluster, *names)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("silence")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_SERVER_HEARTBEAT_INTERVAL_S", "0.2")
        patch.setenv("WEFT_SERVER_SUSPECTED_AFTER_S", "1")
        patch.setenv("WEFT_SERVER_LOST_AFTER_S", str(LOST_S))
        with weft.Cluster(workers=2, shards=2, data_root=root) as cluster, cluster.client() as client:
            yield Place(cluster, client, root)


@pytest.fixture(scope="module")
def document(place: Place) -> dict[str, Any]:
    save_rows(place.root / "rows.npz")
    run = {"steps": SHORT_STEPS, "evaluate_every": SHORT_STEPS // 4}
    return spec_json(Path("rows.npz"), run=run, parallelism={"workers": 2, "shards": 2})


def test_a_job_whose_processes_all_stood_still_goes_on_and_comes_to_the_same_bits(place: Place) -> None:
    """They are silent for longer than an agent may be before it is suspected."""
    job = place.runs()
    agents = ("worker-0", "worker-1", "shard-0", "shard-1")
    with standing_still(place.family(*agents)):
        await_that(lambda: set(place.states().values()) == {AgentState.SUSPECTED}, "all to be suspected")
    assert job.refresh().state is JobState.RUNNING
    place.goes_on(job)
    said = place.said(job)
    for who in (r"worker-\d \(worker 0\)", r"shard-\d \(shard 0\)"):
        assert any(re.match(f"{who} is heard again after", line) for line in said)


def test_a_job_goes_on_after_everything_stood_still_for_longer_than_who_is_silent_is_waited_for(place: Place) -> None:
    """With the server. Nobody takes its own stall for another's silence."""
    job = place.runs()
    with standing_still(place.family("server", "worker-0", "worker-1", "shard-0", "shard-1")):
        signal.sigtimedwait([], LOST_S + 1.0)
    place.goes_on(job)
    assert set(place.states().values()) == {AgentState.ALIVE}


def test_a_job_whose_server_has_no_room_waits_with_its_result_until_there_is_some(place: Place) -> None:
    """No file of the server can grow: neither its database, nor a result."""
    job = place.runs()
    server = place.cluster.processes[0].pid
    log = place.cluster.directory / "logs"
    before = resource.prlimit(server, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        await_that(
            lambda: any("/parameters: attempt 1 has failed" in each.read_text() for each in log.glob("worker-*.log")),
            "its worker to try in vain",
        )
    finally:
        resource.prlimit(server, resource.RLIMIT_FSIZE, before)
    place.goes_on(job)


def test_data_that_is_written_anew_as_it_was_is_trained_on_and_that_is_told(place: Place) -> None:
    job = place.runs()
    place.write_data()
    place.goes_on(job)
    assert any("it holds what it held" in line for line in place.said(job))


def test_a_worker_that_is_lost_in_the_last_evaluation_costs_no_values_that_the_server_has(place: Place) -> None:
    job = place.submit(workers=2, batch_size=2, train=(0, 16), evaluate=(16, ROWS), steps=1)
    result = place.cluster.directory / "jobs" / job.id / "parameters.safetensors"
    await_that(lambda: bool(job.refresh().metrics), "the metrics of its step, from both workers")
    placed = next(line for line in place.said(job) if line.startswith("runs on"))
    keeper = re.search(r"(worker-\d) \(worker \d\) saves", placed)
    assert keeper is not None
    other = "worker-0" if keeper[1] == "worker-1" else "worker-1"
    processes = place.family(other)
    while job.refresh().state is JobState.RUNNING:  # It stands still, and is not lost before the values are there.
        with standing_still(processes):
            await_that(lambda: result.exists() or place.states()[other] is AgentState.SUSPECTED, "its values")
            if result.exists():
                job.wait(timeout_s=DEADLINE_S)
        await_that(lambda: place.states().get(other) is not AgentState.SUSPECTED, "a word of it")
    assert (job.refresh().reason or "").startswith(f"trained, but {other} (worker "), job.job
    assert job.values()


def end(cluster: weft.Cluster, name: str) -> None:
    process = next(process for process in cluster.processes if process.name == name)
    os.kill(process.pid, signal.SIGKILL)
    await_that(lambda: process.exit_code is not None, f"{name} to end")


def kill(cluster: weft.Cluster, outage_s: float = 0.0) -> None:
    """Kills the server, and starts it again after the outage."""
    end(cluster, "server")
    threading.Event().wait(outage_s)
    cluster.restart("server")
    await_that(cluster.listens, "the server to listen again")


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


def test_a_job_outlives_a_server_that_is_killed_again_and_again(place: Place, document: dict[str, Any]) -> None:
    cluster = place.cluster
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        plain = submitted(client, document)
        check_whole(Follower(cluster.url, plain).join())
        pids = {agent["pid"] for agent in client.get("/v1/agents").json()["agents"]}
        job = submitted(client, document)
        follower = Follower(cluster.url, job)
        kill(cluster)  # as it begins
        follower.await_step(SHORT_STEPS // 2)
        kill(cluster, OUTAGE_S)  # it trains on and ends meanwhile: the keeper has to bring the values again
        events = follower.join()
    check_whole(events)
    assert follower.broken
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        assert {agent["pid"] for agent in client.get("/v1/agents").json()["agents"]} == pids

        def states() -> set[str]:
            return {agent["state"] for agent in client.get("/v1/agents").json()["agents"]}

        await_that(lambda: states() == {"alive"}, "all agents to be heard again")
        shown = [client.get(f"/v1/jobs/{each}").json() for each in (plain, job)]
    assert shown[0]["metrics"] == shown[1]["metrics"]
    assert {each["progress"]["step"] for each in shown} == {SHORT_STEPS}
    expected, found = values(cluster, plain), values(cluster, job)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_values_set_while_real_workers_run_hold_and_begin_other_jobs(place: Place, document: dict[str, Any]) -> None:
    cluster = place.cluster
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        long = {**document, "run": {"steps": 1000 * SHORT_STEPS}, "optimizer": {"name": "sgd", "lr": 1e-30}}
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


def test_a_worker_that_ends_while_the_server_is_away_is_lost_as_usual(place: Place, document: dict[str, Any]) -> None:
    cluster = place.cluster
    with httpx.Client(base_url=cluster.url, timeout=DEADLINE_S) as client:
        job = submitted(client, {**document, "run": {"steps": 1000 * SHORT_STEPS}})
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
    place.await_all()


def test_a_daemon_that_is_killed_is_lost_at_once(place: Place) -> None:
    """The server is told, and does not wait for it."""
    place.await_all()
    os.kill(place.cluster.processes[-1].pid, signal.SIGKILL)
    await_that(lambda: bool(place.cluster.ended()), "its end")
    assert "worker-1" not in place.states()
