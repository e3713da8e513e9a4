"""What becomes of trained jobs: trained longer, on other numbers of processes, removed. With real processes."""

from __future__ import annotations

import signal
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import weft
from acceptance_place import Place
from acceptance_processes import family, standing_still
from weft.api.event import LogLine, StateChanged, StepDone
from weft.api.lifecycle import JobState


def bits(job: weft.JobHandle) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in job.values(state=True).items()}


@pytest.fixture
def run(place: Place) -> dict[str, Any]:
    return {
        "data": weft.numpy_data(place.digits),
        "optimizer": weft.Adam(),
        "recovery": weft.Recovery(keep_state=True),
        "batch_size": 64,
    }


@pytest.mark.parametrize(("workers", "shards"), [(1, 0), (2, 2)])
def test_a_job_that_has_succeeded_is_trained_longer_to_the_bits_of_one_of_that_length(
    client: weft.Client, example: ModuleType, run: dict[str, Any], workers: int, shards: int
) -> None:
    """The longer one of many processes goes on with fewer shards."""
    loss, _ = example.build()
    cost = client.dry_run(weft.job_spec(loss, steps=20, workers=workers, shards=shards, **run)).snapshot
    assert (cost.files, cost.every_s, cost.lacking) == (max(shards, 1), 60, None)
    short = client.submit(loss, steps=20, workers=workers, shards=shards, **run)
    ended = short.wait(timeout_s=60)
    assert (ended.snapshot, short.values().step) == (20, 20)
    assert cost.nbytes <= ended.snapshot_bytes <= cost.nbytes + 65536, "headers alone come on top"
    longer = client.resume(short, steps=40, shards=min(shards, 1))
    whole = client.submit(loss, steps=40, workers=workers, shards=shards, **run)
    assert longer.job.progress.step == 20
    longer.wait(timeout_s=60)
    whole.wait(timeout_s=60)
    assert bits(longer) == bits(whole)
    with pytest.raises(weft.InvalidRequestError, match="goes on from step 20, and it has no more steps; give more"):
        client.resume(short)


@pytest.mark.parametrize(("before", "after"), [({"workers": 2, "shards": 1}, {"shards": 2}), ({}, {"shards": 2})])
def test_a_job_that_runs_is_scaled_and_stays_the_same_job_with_the_same_bits(
    place: Place,
    client: weft.Client,
    example: ModuleType,
    run: dict[str, Any],
    before: dict[str, int],
    after: dict[str, int],
) -> None:
    loss, _ = example.build()
    steps = 400
    whole = client.submit(loss, steps=steps, **before, **run)
    whole.wait(timeout_s=180)
    job = client.submit(loss, steps=steps, **before, **run)
    bodies = (event.body for event in job.events())
    next(body for body in bodies if isinstance(body, StepDone) and body.step > 0)
    # The snapshot is of a step that is a second ahead, at the job's pace: of one near by, where the job stands still.
    with standing_still(family(place.cluster, "worker-0", "worker-1")):
        assert (
            job.scale(**after).reason == f"goes on with {before.get('workers', 1)} worker{'s' * bool(before)}, "
            "2 shards from its next snapshot on"
        )
        signal.sigtimedwait([], 1.5)
    ended = job.wait(timeout_s=180)
    states = [event.body.state for event in job.log() if isinstance(event.body, StateChanged)]
    assert states.count(JobState.SCALING) == 1
    assert (ended.shards, ended.restarts, ended.progress.step) == (2, 0, steps)
    assert job.spec().parallelism.shards == 2
    assert bits(job) == bits(whole)
    with pytest.raises(weft.ConflictError, match="has succeeded already, and only a running job can be scaled"):
        job.scale(workers=1)


def test_steps_that_are_not_finite_are_skipped_alike_on_any_number_of_shards(
    client: weft.Client, example: ModuleType, place: Place, run: dict[str, Any]
) -> None:
    """A sample that is no number comes once in each pass over the data, of which there are two."""
    loss, _ = example.build()
    rows = {name: array[:640].copy() for name, array in np.load(place.digits).items()}
    rows["image"][7] = np.nan
    np.savez(place.folder / "spoilt.npz", **rows)
    run |= {"data": weft.numpy_data(place.folder / "spoilt.npz"), "epochs": 2, "workers": 2}
    run["recovery"] = weft.Recovery(keep_state=True, on_nan="skip")
    jobs = [client.submit(loss, shards=shards, **run) for shards in (1, 2)]
    for job in jobs:
        metrics = job.wait(timeout_s=60).metrics
        assert metrics["train/skipped_steps"] == 2
        assert np.isfinite(metrics["train/loss"])
        told = [event.body.message for event in job.log() if isinstance(event.body, LogLine)]
        assert sum("was skipped: its gradient is not finite" in line for line in told) == 2
        assert all(np.isfinite(value).all() for value in job.values(state=True).values())
    assert bits(jobs[0]) == bits(jobs[1])
