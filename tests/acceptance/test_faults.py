"""Faults at chosen messages and steps: a job comes to the bits of an undisturbed one, or fails and says what died."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft
from acceptance_processes import alive, await_that, descendants, load_script
from weft.api.event import LogLine, StepDone
from weft.api.lifecycle import JobState

STEPS = 40
RUNS = [
    ("kill two", "dense", 5),
    ("stop", "adam", 4),
    ("kill", "table", 6),
    ("kill", "2bit", 8),
    ("cut", "float16", 9),
    ("cut", "clipped", 10),
]
"""A link that is cut concerns the store alone, whose own tests cut links of each kind of key."""


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    return load_script("benchmarks/chaos.py")


@pytest.fixture(scope="module")
def disturbed(chaos: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of the three workers one is idle."""
    folder: Path = tmp_path_factory.mktemp("faults")
    with chaos.disturbed_cluster(folder, workers=3, shards=2) as disturbed:
        yield disturbed


@pytest.mark.parametrize(("fault", "case", "seed"), RUNS)
def test_a_disturbed_job_has_the_bits_of_an_undisturbed_one(
    chaos: ModuleType, disturbed: Any, fault: str, case: str, seed: int
) -> None:
    """Daemons are left alone: what a new one costs is its imports."""
    outcome = chaos.run(disturbed, seed, fault, case, STEPS, daemons=False)
    assert not outcome.wrong, outcome
    assert any("not reached" not in done for done in outcome.done), outcome


@pytest.mark.parametrize(("case", "without_worker"), [("adam", "takes over"), ("workers", "begins again")])
def test_a_job_goes_on_without_a_worker_and_from_its_snapshot_without_a_shard(
    chaos: ModuleType, disturbed: Any, case: str, without_worker: str
) -> None:
    """The daemon of a worker is killed, whose slot another takes over where workers have no state of their own; then
    the process that serves the job on a shard. A worker stands still most of the time until there is a snapshot."""
    points = [
        chaos.Point(0, "worker", 1, 0, "step", 10, kill=["daemon of worker 0"]),
        chaos.Point(1, "worker", 1, 0, "step", 20, stop="worker 0", stop_s=0.2, until_saved=True),
        chaos.Point(2, "worker", 1, 0, "step", 110, kill=["shard 1"], saved=True),
    ]
    outcome = chaos.run(disturbed, 0, "kill", case, 120, points=points)
    assert (outcome.wrong, outcome.done) == ("", [str(point) for point in points])
    job = next(disturbed.client.jobs())
    said = "\n".join(event.body.message for event in job.log() if isinstance(event.body, LogLine))
    assert re.search(f"{without_worker}.*goes on from step [1-9]", said, re.DOTALL), said
    assert outcome.restarts == 2
    if case == "adam":  # A table's snapshot may need files of an earlier one.
        assert len([*(disturbed.cluster.directory / "snapshots" / job.id).glob("*/snapshot.json")]) == 1


def test_a_killed_daemon_fails_the_job_by_name_and_step(chaos: ModuleType, disturbed: Any) -> None:
    """A worker first, then a shard; what is left goes on serving each time."""
    disturbed.begin(0, [], {})
    client = disturbed.client
    run: dict[str, Any] = {"data": weft.numpy_data("data.npz", columns={"x": "x", "y": "y"}), "optimizer": weft.Adam()}
    for kind in ("worker", "shard"):
        once = weft.Recovery(max_restarts=0)
        job = client.submit(chaos.loss_of("adam"), steps=10**6, workers=2, shards=2, recovery=once, **run)
        next(event for event in job.events() if isinstance(event.body, StepDone) and event.body.step > 0)
        victim = next(agent for agent in client.agents() if agent.kind == kind and job.id in agent.jobs)
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(weft.JobFailedError) as failure:
            job.wait(timeout_s=180)
        reason = failure.value.job.reason or ""
        assert victim.name in reason or victim.name.replace("-", " ") in reason, reason
        assert re.search(r"step \d+", reason), reason
        survivor = client.submit(chaos.loss_of("adam"), steps=3, workers=1, shards=1, **run)
        survivor.wait(timeout_s=180)
        assert survivor.state is JobState.SUCCEEDED


def test_a_cluster_s_program_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Neither a daemon nor what it has started."""
    program = (
        "import signal, sys, weft\n"
        "with weft.Cluster(workers=1, shards=1, directory=sys.argv[1], data_root=sys.argv[1]):\n"
        "    print('it runs', flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        below = descendants(parent.pid)
        assert len(below) >= 5, "a server, a shard, a worker, and the forkservers of these"
        parent.kill()
        parent.stdout.read()
        assert parent.wait(timeout=60) != 0
    await_that(lambda: not any(alive(pid) for pid in below), f"processes {below} to end")
