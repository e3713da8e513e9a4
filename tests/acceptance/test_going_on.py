"""What becomes of trained jobs: trained longer, on other numbers of processes, removed. With real processes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import weft
from acceptance_place import Place


def bits(job: weft.JobHandle) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in job.values(state=True).items()}


@pytest.fixture
def run(place: Place) -> dict[str, Any]:
    return {"data": weft.numpy_data(place.digits), "rule": weft.Adam(), "keep_state": True, "batch": 64}


@pytest.mark.parametrize(("workers", "shards"), [(1, 0), (2, 2)])
def test_a_job_that_has_succeeded_is_trained_longer_to_the_bits_of_one_of_that_length(
    client: weft.Client, example: ModuleType, run: dict[str, Any], workers: int, shards: int
) -> None:
    loss, _ = example.build()
    short = client.submit(loss, steps=20, workers=workers, shards=shards, **run)
    assert short.wait(timeout_s=60).snapshot == 20
    longer = client.resume(short, steps=40)
    whole = client.submit(loss, steps=40, workers=workers, shards=shards, **run)
    assert longer.job.progress.step == 20
    longer.wait(timeout_s=60)
    whole.wait(timeout_s=60)
    assert bits(longer) == bits(whole)
    with pytest.raises(weft.InvalidRequestError, match="20 steps are done already"):
        client.resume(short)
