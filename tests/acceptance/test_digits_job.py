"""The main job on real processes, from HTTP to weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import plain_lenet
import weft
from acceptance_place import Place
from weft.api.event import MetricTaken, StateChanged
from weft.api.lifecycle import JobState


def submit(client: weft.Client, place: Place, example: ModuleType, **settings: Any) -> weft.JobHandle:
    loss, accuracy = example.build()
    train = place.rows - example.EVALUATION_ROWS
    data = weft.numpy_data(place.digits, evaluate=(train, place.rows))
    return client.submit(loss, metrics={"accuracy": accuracy}, data=data, workers=2, **settings)


@pytest.fixture(scope="module")
def trained(place: Place, example: ModuleType) -> Iterator[weft.JobHandle]:
    with place.cluster.client() as client:
        job = submit(
            client, place, example, epochs=1, evaluate_every=20, shards=2, optimizer=weft.Adam(lr=0.001), name="digits"
        )
        job.wait(timeout_s=180)
        yield job


def test_accuracy_of_the_saved_weights_in_plain_numpy_is_what_the_job_reports(
    trained: weft.JobHandle, place: Place, example: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "digits.safetensors"
    trained.save(path)
    with np.load(place.digits) as digits:
        image, label = digits["image"][-example.EVALUATION_ROWS :], digits["label"][-example.EVALUATION_ROWS :]
    scores = plain_lenet.logits(load_file(path), image)
    accuracy = float((scores.argmax(axis=1) == label).mean())
    assert accuracy >= 0.8
    assert trained.job.metrics["evaluate/accuracy"] == pytest.approx(accuracy, abs=1e-6)


def test_its_log_tells_the_states_in_order_and_falls_in_loss(trained: weft.JobHandle) -> None:
    events = list(trained.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    states = [event.body.state for event in events if isinstance(event.body, StateChanged)]
    assert states == [
        JobState.PENDING,
        JobState.STARTING,
        JobState.RUNNING,
        JobState.FINISHING,
        JobState.SUCCEEDED,
    ]
    losses = [
        event.body.values["loss"]
        for event in events
        if isinstance(event.body, MetricTaken) and event.body.split == "evaluate"
    ]
    assert len(losses) == -(-trained.job.progress.steps // 20)
    assert losses[-1] < losses[0] / 3


def test_the_same_job_gives_the_same_bits_on_one_shard_and_on_two(
    client: weft.Client, place: Place, example: ModuleType
) -> None:
    values = []
    for shards in (1, 2):
        job = submit(client, place, example, steps=20, shards=shards, seed=7, optimizer=weft.Adam(lr=0.003))
        job.wait(timeout_s=180)
        values.append(job.values())
    one, two = values
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name, strict=True)


def test_a_cancelled_job_ends_and_its_workers_take_the_next(
    client: weft.Client, place: Place, example: ModuleType
) -> None:
    job = submit(client, place, example, epochs=10_000)
    next(event for event in job.events() if getattr(event.body, "state", None) is JobState.RUNNING)
    job.cancel()
    with pytest.raises(weft.JobCancelledError):
        job.wait(timeout_s=60)
    submit(client, place, example, steps=3).wait(timeout_s=180)


def test_values_of_a_running_job_are_of_one_step_and_do_not_stop_it(
    client: weft.Client, place: Place, example: ModuleType
) -> None:
    job = submit(client, place, example, epochs=10_000)
    next(event for event in job.events() if getattr(event.body, "state", None) is JobState.RUNNING)
    first = job.values()
    later = job.values(["scores.weight"])
    assert set(later) == {"scores.weight"}
    assert later.step > first.step
    assert job.refresh().state is JobState.RUNNING
    job.cancel()
