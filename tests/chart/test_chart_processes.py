"""What the chart renders starts the real daemons, which train a job together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from acceptance_processes import await_that
from chart_processes import Kubelet, kubelet
from chart_rendering import render
from free_ports import free_port
from weft.api.agent import AgentKind
from weft.api.lifecycle import JobState

DEADLINE_S = 120.0


@pytest.fixture
def started(tmp_path: Path) -> Kubelet:
    """The release's pods, each as a process. One shard, since here all have one network."""
    manifests = render(
        {
            "server": {"port": free_port()},
            "shards": {"replicas": 1, "ports": dict.fromkeys(("first", "last"), free_port())},
            "workers": {"replicas": 2},
        }
    )
    with kubelet(manifests, tmp_path) as running:
        running.start("StatefulSet", "shard")
        running.start("StatefulSet", "worker")
        running.start("Deployment", "server")
        await_that(lambda: _all_pass(running, "startupProbe"), "every startup probe", DEADLINE_S)
        yield running


def _all_pass(running: Kubelet, probe: str) -> bool:
    return all(pod.probe(probe) for pod in running.pods if probe in pod.container)


def test_the_rendered_commands_train_a_job_and_pass_their_probes(started: Kubelet, tmp_path: Path) -> None:
    server = started.pods[-1]
    url = f"http://127.0.0.1:{server.container['ports'][0]['containerPort']}"
    x = np.random.default_rng(0).standard_normal((256, 4), dtype=np.float32)
    points = tmp_path / "data" / "points.npz"
    np.savez(points, x=x, y=(x[:, :1] > 0).astype(np.float32))
    with pytest.raises(weft.WeftError, match=r"401|token"), weft.Client(url) as stranger:
        list(stranger.jobs())
    with weft.Client(url, token=server.environment["WEFT_SERVER_TOKEN"]) as client:
        await_that(lambda: len(client.agents()) == 3, "three agents", DEADLINE_S)
        agents = {agent.name: agent for agent in client.agents()}
        assert {name: agent.kind for name, agent in agents.items()} == {
            "demo-weft-shard-0": AgentKind.SHARD,
            "demo-weft-worker-0": AgentKind.WORKER,
            "demo-weft-worker-1": AgentKind.WORKER,
        }
        job = client.submit(_loss(), data=weft.numpy_data(points), epochs=2, workers=2)
        assert job.wait(timeout_s=DEADLINE_S).state is JobState.SUCCEEDED
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert _all_pass(started, probe), probe
    assert started.stop() == [0, 0, 0, 0]
    assert not _all_pass(started, "readinessProbe")


def _loss() -> weft.Expression:
    x, y = weft.input("x", ("batch", 4)), weft.input("y", ("batch", 1))
    error = weft.nn.Linear(4, 1)(x) - y
    return weft.ops.reduce_mean(error * error)
