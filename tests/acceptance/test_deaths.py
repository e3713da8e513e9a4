"""Killed processes: a job goes on and comes to the same bits; one that may not fails and says what died."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import weft
from acceptance_processes import alive, await_that, descendants
from weft import nn
from weft.api.event import LogLine, StateChanged, StepDone
from weft.api.lifecycle import JobState

KEPT = weft.Recovery(keep_state=True)

DEADLINE_S = 15.0
"""The promise, and the one time that is asserted here: a deadline, not a speed."""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[weft.Cluster]:
    """One for two tests: the first kills a child alone, the second what the cluster consists of."""
    with weft.Cluster(workers=2, shards=2, data_root=tmp_path_factory.mktemp("mortal")) as cluster:
        yield cluster


def test_a_job_comes_to_the_same_bits_though_a_worker_and_a_shard_are_killed(
    example: ModuleType, tmp_path: Path
) -> None:
    """The daemon of a worker, whose slot another takes over; then the process that serves the job on a shard, after
    which the whole job goes on from a snapshot."""
    example.write_data(tmp_path / "digits.npz")
    loss, _ = example.build()
    run: dict[str, Any] = {"steps": 160, "workers": 2, "shards": 2, "optimizer": weft.Adam(), "recovery": KEPT}
    run["data"] = weft.numpy_data("digits.npz")
    with weft.Cluster(workers=3, shards=2, data_root=tmp_path) as cluster, cluster.client() as client:
        undisturbed = client.submit(loss, **run)
        undisturbed.wait(timeout_s=180)
        job = client.submit(loss, **{**run, "recovery": replace(KEPT, snapshot_every_s=0.2)})
        bodies = (event.body for event in job.events())

        def pids(kind: str) -> list[int]:
            return [agent.pid for agent in client.agents() if agent.kind == kind and job.id in agent.jobs]

        next(body for body in bodies if isinstance(body, StepDone) and body.step > 0)
        os.kill(pids("worker")[0], signal.SIGKILL)
        next(body for body in bodies if isinstance(body, LogLine) and "takes over" in body.message)
        before = job.refresh().snapshot or 0
        await_that(lambda: (job.refresh().snapshot or 0) > before, "a new snapshot", deadline_s=60)
        kept = job.job.snapshot or 0
        os.kill(max(descendants(pids("shard")[1])), signal.SIGKILL)
        next(body for body in bodies if isinstance(body, StateChanged) and body.state is JobState.RECOVERING)
        said = next(body.message for body in bodies if isinstance(body, LogLine) and "goes on" in body.message)
        assert int(re.search(r"goes on from step (\d+)", said)[1]) >= kept  # type: ignore[index]
        job.wait(timeout_s=180)
        assert job.refresh().restarts == 2
        for place in (cluster.directory / "snapshots").iterdir():
            assert sorted(each.name for each in place.glob("*/snapshot.json")) == ["snapshot.json"]
        expected, found = undisturbed.values(state=True), job.values(state=True)
        assert {name: value.tobytes() for name, value in found.items()} == {
            name: value.tobytes() for name, value in expected.items()
        }


def test_a_job_whose_workers_have_state_too_goes_on_where_it_was_though_a_shard_is_killed(mortal: weft.Cluster) -> None:
    """A table is on the shards; with the workers are the dense parameters and what compression owes."""
    draw = np.random.default_rng(0)
    np.savez(mortal.data_root / "data.npz", ids=draw.integers(0, 500, (2048, 4)), y=draw.integers(0, 2, 2048))
    net = nn.Sequential(nn.Embedding(500, 8), nn.Flatten(), nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 2))
    loss = nn.cross_entropy(net(weft.input("ids", ("batch", 4), "int64")), weft.input("y", ("batch",), "int64"))
    coded = {"kind": "2bit", "threshold": 0.01}
    run: dict[str, Any] = {"steps": 400, "workers": 2, "shards": 2, "optimizer": weft.Adagrad(), "recovery": KEPT}
    run |= {
        "data": weft.numpy_data("data.npz", columns={"ids": "ids", "y": "y"}),
        "communication": weft.Communication(update="workers", compression={"gradients": coded, "merged": coded}),
    }
    with mortal.client() as client:
        undisturbed = client.submit(loss, **run)
        job = client.submit(loss, **{**run, "recovery": replace(KEPT, snapshot_every_s=0.2)})
        bodies = (event.body for event in job.events())
        await_that(lambda: job.refresh().snapshot, "a snapshot", deadline_s=60)
        shard = next(agent for agent in client.agents() if agent.kind == "shard" and job.id in agent.jobs)
        os.kill(max(descendants(shard.pid)), signal.SIGKILL)
        next(body for body in bodies if isinstance(body, LogLine) and "goes on from step" in body.message)
        job.wait(timeout_s=180)
        undisturbed.wait(timeout_s=180)
        assert job.refresh().restarts == 1
        found, expected = job.values(state=True), undisturbed.values(state=True)
        assert {name: value.tobytes() for name, value in found.items()} == {
            name: value.tobytes() for name, value in expected.items()
        }


def test_a_killed_daemon_fails_the_job_by_name_and_step(mortal: weft.Cluster, example: ModuleType) -> None:
    """A worker first, then a shard; what is left goes on serving each time."""
    rows = example.write_data(mortal.data_root / "digits.npz")
    loss, _ = example.build()
    data = weft.numpy_data("digits.npz", evaluate=(rows - 360, rows))
    with mortal.client() as client:
        for victim, workers in (("worker-1", 2), ("shard-1", 1)):
            job = client.submit(
                loss, data=data, epochs=100_000, workers=workers, shards=2, recovery=weft.Recovery(max_restarts=0)
            )
            next(event for event in job.events() if isinstance(event.body, StepDone) and event.body.step > 0)
            killed = time.monotonic()
            os.kill(next(agent.pid for agent in client.agents() if agent.name == victim), signal.SIGKILL)
            with pytest.raises(weft.JobFailedError) as failure:
                job.wait(timeout_s=DEADLINE_S)
            assert time.monotonic() - killed < DEADLINE_S
            reason = failure.value.job.reason or ""
            assert victim in reason or victim.replace("-", " ") in reason, reason
            assert re.search(r"step \d+", reason), reason
            survivor = client.submit(loss, data=data, steps=3, workers=1, shards=1)
            survivor.wait(timeout_s=180)
            assert survivor.state is JobState.SUCCEEDED


def test_daemons_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys, time, weft\n"
        f"place = {str(tmp_path)!r}\n"
        "with weft.Cluster(workers=1, shards=1, directory=place, data_root=place) as cluster:\n"
        "    print(*(process.pid for process in cluster.processes), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        parent.kill()
    await_that(lambda: not any(alive(pid) for pid in pids), f"processes {pids} to end", deadline_s=60)
