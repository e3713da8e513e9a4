"""Processes that stand still are waited for, and their jobs lose nothing; one that is dead is not waited for."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from acceptance_processes import await_that, descendants
from weft import nn
from weft.api.event import LogLine
from weft.api.lifecycle import AgentState, JobState

STEPS = 1500
"""Some seconds: it is in the midst of them when its progress is told for the first time."""


def test_a_job_whose_processes_all_stood_still_goes_on_and_comes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are silent for longer than an agent may be before it is suspected. Then a daemon is killed: the server is
    told at once, and does not wait for it."""
    monkeypatch.setenv("WEFT_SERVER_HEARTBEAT_INTERVAL_S", "0.2")
    monkeypatch.setenv("WEFT_SERVER_SUSPECTED_AFTER_S", "1")
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=draw.standard_normal((256, 8), dtype=np.float32), y=draw.integers(0, 2, 256))
    loss = nn.cross_entropy(nn.Linear(8, 2)(weft.input("x", ("batch", 8))), weft.input("y", ("batch",), "int64"))
    run: dict[str, Any] = {"steps": STEPS, "workers": 1, "shards": 1, "optimizer": weft.Adam()}
    run["recovery"] = weft.Recovery(keep_state=True)
    run["data"] = weft.numpy_data("data.npz", columns={"x": "x", "y": "y"})
    with weft.Cluster(workers=1, shards=1, data_root=tmp_path) as cluster, cluster.client() as client:

        def states() -> dict[str, AgentState]:
            return {agent.name: agent.state for agent in client.agents()}

        daemons = [process.pid for process in cluster.processes[1:]]
        job, undisturbed = client.submit(loss, **run), client.submit(loss, **run)
        await_that(lambda: job.refresh().progress.step > 0, "its progress", 60)
        still = [pid for daemon in daemons for pid in (daemon, *descendants(daemon))]
        for pid in still:
            os.kill(pid, signal.SIGSTOP)
        try:
            await_that(lambda: set(states().values()) == {AgentState.SUSPECTED}, "all to be suspected", 20)
        finally:
            for pid in still:
                os.kill(pid, signal.SIGCONT)
        assert job.refresh().state is JobState.RUNNING
        job.wait(timeout_s=60)
        assert job.refresh().restarts == 0
        said = [event.body.message for event in job.events() if isinstance(event.body, LogLine)]
        for who in ("worker-0 (slot 0)", "shard-0 (shard 0)"):
            assert any(line.startswith(f"{who} is heard again after") for line in said)
        undisturbed.wait(timeout_s=60)
        expected, found = undisturbed.values(state=True), job.values(state=True)
        assert {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in expected.items()}

        os.kill(daemons[-1], signal.SIGKILL)
        await_that(lambda: bool(cluster.ended()), "its end", 20)
        assert states()["worker-0"] is AgentState.LOST
