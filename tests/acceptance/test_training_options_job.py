"""One job on real processes with everything that changes how it trains, from HTTP to weights."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

import plain_lenet
import weft
from acceptance_place import Place
from weft.api.event import MetricTaken


@pytest.fixture(scope="module")
def trained(place: Place, example: ModuleType) -> Iterator[weft.JobHandle]:
    loss, accuracy = example.build()
    rows = {"train": (0, 2880), "evaluate": (place.rows - example.EVALUATION_ROWS, place.rows)}
    data = weft.numpy_data(place.digits, **rows)
    with place.cluster.client() as client:
        job = client.submit(
            loss,
            metrics={"accuracy": accuracy},
            data=data,
            workers=2,
            shards=2,
            epochs=1,
            optimizer=weft.Adam(lr=0.003),
            precision="float16",
            loss_scale={"initial": 2.0**24, "growth_interval": 20},
            clip_norm=5.0,
            accumulate=2,
            ema=weft.EMA(0.9, evaluate=True),
            name="options",
        )
        job.wait(timeout_s=180)
        yield job


def test_its_evaluation_is_that_of_the_saved_averages(
    trained: weft.JobHandle, place: Place, example: ModuleType
) -> None:
    averages, values = trained.values(ema=True), trained.values()
    assert averages.keys() == values.keys()
    assert any(averages[name].tobytes() != values[name].tobytes() for name in values)
    with np.load(place.digits) as digits:
        image, label = digits["image"][-example.EVALUATION_ROWS :], digits["label"][-example.EVALUATION_ROWS :]
    accuracy = float((plain_lenet.logits(averages, image).argmax(axis=1) == label).mean())
    assert accuracy >= 0.7
    assert trained.job.metrics["evaluate/accuracy"] == pytest.approx(accuracy, abs=0.02), "which is in float16"


def test_it_tells_the_norm_the_scale_and_the_steps_that_it_skipped(trained: weft.JobHandle) -> None:
    taken = [event.body for event in trained.events() if isinstance(event.body, MetricTaken)]
    steps = [body.values for body in taken if body.split == "train"]
    assert all(np.isfinite(values["gradient_norm"]) for values in steps if "gradient_norm" in values)
    scales = [values["loss_scale"] for values in steps]
    assert min(scales) < 2.0**24, "the first steps overflow"
    told = [getattr(event.body, "message", "") for event in trained.events()]
    assert any("was skipped: its gradient is not finite" in message for message in told)
