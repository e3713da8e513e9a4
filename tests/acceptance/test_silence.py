"""Processes that stand still, a disk that is full and data that is written anew: a job waits, and loses nothing."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from acceptance_processes import await_that, family, standing_still
from weft import nn
from weft.api.event import LogLine
from weft.api.lifecycle import AgentState, JobState

STEPS = 1500
"""Some seconds: it is in the midst of them when its metrics are told for the first time."""
ROWS = 40_000
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
        await_that(lambda: bool(job.refresh().metrics), "its metrics", DEADLINE_S)
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

    def family(self, *names: str) -> list[int]:
        return family(self.cluster, *names)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("silence")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_SERVER_HEARTBEAT_INTERVAL_S", "0.2")
        patch.setenv("WEFT_SERVER_SUSPECTED_AFTER_S", "1")
        patch.setenv("WEFT_SERVER_LOST_AFTER_S", str(LOST_S))
        with weft.Cluster(workers=2, shards=1, data_root=root) as cluster, cluster.client() as client:
            yield Place(cluster, client, root)


def test_a_job_whose_processes_all_stood_still_goes_on_and_comes_to_the_same_bits(place: Place) -> None:
    """They are silent for longer than an agent may be before it is suspected."""
    job = place.runs()
    agents = ("worker-0", "worker-1", "shard-0")
    with standing_still(place.family(*agents)):
        await_that(lambda: set(place.states().values()) == {AgentState.SUSPECTED}, "all to be suspected", 20)
    assert job.refresh().state is JobState.RUNNING
    place.goes_on(job)
    said = place.said(job)
    for who in (r"worker-\d \(worker 0\)", r"shard-0 \(shard 0\)"):
        assert any(re.match(f"{who} is heard again after", line) for line in said)


def test_a_job_goes_on_after_everything_stood_still_for_longer_than_who_is_silent_is_waited_for(place: Place) -> None:
    """With the server. Nobody takes its own stall for another's silence."""
    job = place.runs()
    with standing_still(place.family("server", "worker-0", "worker-1", "shard-0")):
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
            DEADLINE_S,
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
    await_that(lambda: bool(job.refresh().metrics), "the metrics of its step, from both workers", DEADLINE_S)
    placed = next(line for line in place.said(job) if line.startswith("runs on"))
    keeper = re.search(r"(worker-\d) \(worker \d\) saves", placed)
    assert keeper is not None
    other = "worker-0" if keeper[1] == "worker-1" else "worker-1"
    processes = place.family(other)
    while job.refresh().state is JobState.RUNNING:  # It stands still, and is not lost before the values are there.
        with standing_still(processes):
            await_that(
                lambda: result.exists() or place.states()[other] is AgentState.SUSPECTED, "its values", DEADLINE_S
            )
            if result.exists():
                job.wait(timeout_s=DEADLINE_S)
        await_that(lambda: place.states().get(other) is not AgentState.SUSPECTED, "a word of it", DEADLINE_S)
    assert (job.refresh().reason or "").startswith(f"trained, but {other} (worker "), job.job
    assert job.values()


def test_a_daemon_that_is_killed_is_lost_at_once(place: Place) -> None:
    """The server is told, and does not wait for it."""
    await_that(lambda: len(place.states()) == 3, "all agents", DEADLINE_S)
    os.kill(place.cluster.processes[-1].pid, signal.SIGKILL)
    await_that(lambda: bool(place.cluster.ended()), "its end", 20)
    assert "worker-1" not in place.states()
