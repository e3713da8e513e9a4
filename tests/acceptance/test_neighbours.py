"""Jobs of several users on one cluster: what one does to its own job does nothing to another's."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from acceptance_place import Place
from acceptance_processes import await_that, load_script
from weft import custom_optimizer, nn, ops
from weft.api.lifecycle import AgentState, JobState


@custom_optimizer(lr=0.1)
def heavy(weight: Any, gradient: Any, lr: Any) -> Any:
    """Its graph is small, and the shard computes for ever."""
    for _ in range(250):
        gradient = ops.erf(gradient)
    return weight - lr * gradient


def test_a_rule_that_keeps_a_shard_busy_for_ever_costs_another_job_nothing(place: Place, client: weft.Client) -> None:
    np.savez(place.folder / "few.npz", x=np.ones((64, 8), np.float32), y=np.zeros(64, np.int64))
    x, y = weft.input("x", ("batch", 8)), weft.input("y", ("batch",), "int64")
    data = weft.numpy_data("few.npz")
    wide = [nn.Linear(8, 1000), *(nn.Linear(1000, 1000) for _ in range(4)), nn.Linear(1000, 2)]
    run: dict[str, Any] = {"data": data, "workers": 1, "shards": 2, "recovery": weft.Recovery(max_restarts=0)}
    hog = client.submit(nn.cross_entropy(nn.Sequential(*wide)(x), y), steps=100_000, optimizer=heavy(), **run)
    await_that(lambda: hog.refresh().state is JobState.RUNNING, "the busy job to run")
    honest = client.submit(nn.cross_entropy(nn.Linear(8, 2)(x), y), steps=100, **run)
    honest.wait(timeout_s=60)
    assert hog.refresh().state is JobState.RUNNING
    assert {agent.state for agent in client.agents()} == {AgentState.ALIVE}
    hog.cancel()
    await_that(lambda: not any(agent.jobs for agent in client.agents()), "its processes to end")


def test_of_jobs_one_after_the_other_and_at_once_nothing_stays(place: Place, client: weft.Client) -> None:
    """No process and no descriptor. A mapping or 250 kB of each job would be over the bounds, which are for the
    server's threads and for what memory is first used for."""
    jobs = load_script("benchmarks/jobs.py")
    jobs.write_data(place.folder)

    def run(rounds: int) -> None:
        for _ in range(rounds):
            jobs.at_once(client, 1, 2)
            jobs.at_once(client, 2, 1)

    run(4)  # Every agent has had a job then.
    before = jobs.held(place.cluster)
    run(8)

    def nothing_stays() -> bool:
        now = jobs.held(place.cluster)
        counted = now.processes <= before.processes and now.descriptors <= before.descriptors
        return counted and now.mappings < before.mappings + 24 and now.resident_bytes < before.resident_bytes + 6e6

    await_that(nothing_stays, f"no more than {before} to be left of 24 jobs")
