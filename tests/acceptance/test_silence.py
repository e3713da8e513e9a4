"""Processes that stand still are waited for, and their jobs lose nothing; one that is dead is not waited for."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft
from acceptance_processes import await_that, descendants
from weft.api.event import LogLine
from weft.api.lifecycle import AgentState


def test_a_job_whose_processes_all_stood_still_goes_on_and_comes_to_the_same_bits(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are silent for longer than an agent may be before it is suspected. Then a daemon is killed: the server is
    told at once, and does not wait for it."""
    monkeypatch.setenv("WEFT_SERVER_HEARTBEAT_INTERVAL_S", "0.2")
    monkeypatch.setenv("WEFT_SERVER_SUSPECTED_AFTER_S", "1")
    example.write_data(tmp_path / "digits.npz")
    loss, _ = example.build()
    run: dict[str, Any] = {"steps": 40, "workers": 1, "shards": 1, "rule": weft.Adam(), "keep_state": True}
    with weft.Cluster(workers=1, shards=1, data_root=tmp_path) as cluster, cluster.client() as client:

        def states() -> dict[str, AgentState]:
            return {agent.name: agent.state for agent in client.agents()}

        daemons = [process.pid for process in cluster.processes[1:]]
        undisturbed, job = (client.submit(loss, data=weft.numpy_data("digits.npz"), **run) for _ in range(2))
        await_that(lambda: job.refresh().state == "running", "it to run", 60)
        still = [pid for daemon in daemons for pid in (daemon, *descendants(daemon))]
        for pid in still:
            os.kill(pid, signal.SIGSTOP)
        try:
            await_that(lambda: set(states().values()) == {AgentState.SUSPECTED}, "all to be suspected", 20)
        finally:
            for pid in still:
                os.kill(pid, signal.SIGCONT)
        job.wait(timeout_s=60)
        assert job.refresh().restarts == 0
        said = [event.body.message for event in job.events() if isinstance(event.body, LogLine)]
        for who in ("worker-0 (slot 0)", "shard-0 (shard 0)"):
            assert any(line.startswith(f"{who} is heard again after") for line in said)
        expected, found = undisturbed.values(state=True), job.values(state=True)
        assert {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in expected.items()}

        os.kill(daemons[-1], signal.SIGKILL)
        await_that(lambda: bool(cluster.ended()), "its end", 20)
        assert states()["worker-0"] is AgentState.LOST
