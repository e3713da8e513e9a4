"""Runs that keep averages: on shards, in evaluations, and in the document that a job ends with."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from store_cluster import served
from weft.api.lifecycle import AllocationEvent
from weft.api.store import AverageSpec
from weft.parameter_file import averages_of
from weft_kernels.averaging import AVERAGE
from weft_kernels.kernel import Array
from weft_kvstore.description.records import descriptions
from weft_kvstore.errors import StoreLostError
from weft_worker.evaluation import AveragedStore
from worker_graphs import METRICS, bags, mlp
from worker_jobs import BAG_COLUMNS, Job, Records, programs_of, run_all, save_bags, save_data

ROWS, HELD_OUT, STEPS = 90, 30, 12
UNIFORM, DECAYING = AverageSpec(start=4), AverageSpec(decay=0.8)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    data = save_data(tmp_path / "samples.npz", ROWS + HELD_OUT)
    return Job(programs_of(mlp(), METRICS), data, STEPS, (0, ROWS), slots=2, batch=30, evaluate=(ROWS, ROWS + HELD_OUT))


def trained(job: Job, shards: int = 2) -> tuple[dict[str, Array], list[Records]]:
    with ExitStack() as stack:
        job = replace(job, shards=("",) * shards)
        at, _ = stack.enter_context(served(descriptions.from_builtins(job.store_spec().model_dump(mode="json"))))
        records = run_all(replace(job, shards=at.shards))
    assert [each.last for each in records] == [(AllocationEvent.DONE, None)] * job.slots
    return load(records[0].uploads[0][0]), records


def plain_averages(job: Job, average: AverageSpec) -> dict[str, Array]:
    """Of the parameters that the same run without averages has after each number of steps."""
    seen = [trained(replace(job, steps=steps, average=None))[0] for steps in range(1, STEPS + 1)][average.start :]
    decay = 1.0 if average.decay is None else average.decay
    shares = np.array([decay ** (len(seen) - 1 - at) for at in range(len(seen))])
    return {key: np.tensordot(shares / shares.sum(), np.array([one[key] for one in seen]), 1) for key in seen[0]}


@pytest.mark.parametrize("average", [UNIFORM, DECAYING], ids=["uniform", "decaying"])
def test_the_document_has_how_far_the_averages_are_ahead(job: Job, average: AverageSpec) -> None:
    document, _ = trained(replace(job, average=average))
    plain, _ = trained(job)
    assert all(document[key].tobytes() == plain[key].tobytes() for key in plain)
    assert set(document) == {*plain, *(f"weft.state/{AVERAGE}/{key}" for key in plain)}
    found = averages_of(document)
    for key, expected in plain_averages(job, average).items():
        np.testing.assert_allclose(found[key], expected, rtol=1e-9, atol=1e-12)


def test_an_evaluation_sees_the_averages_where_it_is_asked_to(job: Job) -> None:
    document, records = trained(replace(job, average=DECAYING, evaluate_average=True))
    values = averages_of(document)
    with np.load(job.data) as columns:
        x, labels = columns["x"][ROWS:], columns["y"][ROWS:]
    scores = np.maximum(x @ values["w1"] + values["b1"], 0) @ values["w2"] + values["b2"]
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(HELD_OUT), labels]
    last = [[report for report in each.metrics if report.split == "evaluate"][-1] for each in records]
    assert sum(report.sums["loss"] for report in last) == pytest.approx(losses.sum())


def test_rows_of_a_table_have_averages_and_untouched_ones_are_their_own(tmp_path: Path) -> None:
    data = save_bags(tmp_path / "bags.npz", ROWS)
    made = Job(programs_of(bags(), METRICS), data, STEPS, (0, ROWS), slots=2, batch=30, columns=BAG_COLUMNS)
    averaged = replace(made, average=AverageSpec(), evaluate=(0, 30), evaluate_average=True)
    one, _ = trained(averaged, shards=1)
    three, _ = trained(averaged, shards=3)
    assert all(one[key].tobytes() == three[key].tobytes() for key in one)
    (table,) = [key.key for key in made.programs.keys if key.rows]
    first, _ = trained(replace(made, steps=1, lr=0.0))
    ahead, moved = one[f"weft.state/{AVERAGE}/{table}"], (one[table] != first[table]).any(axis=1)
    assert moved.any()
    assert ahead[moved].any()
    assert not ahead[~moved].any()


def test_the_state_is_kept_beside_the_averages_where_both_are_asked_for(job: Job) -> None:
    adam = replace(job, rule="adam", hyper={"lr": 0.01}, average=DECAYING, keep_state=True, steps=2)
    document, _ = trained(adam, shards=1)
    assert {name.split("/")[1] for name in document if name.startswith("weft.state/")} == {"mean", "variance", AVERAGE}


class Halves:
    """A store of one key, whose state comes in another shape, or never."""

    def __init__(self, state: Array | StoreLostError) -> None:
        self.state = state

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        future: Future[Any] = Future()
        if not state:
            future.set_result(np.ones(2))
        elif isinstance(self.state, StoreLostError):
            future.set_exception(self.state)
        else:
            future.set_result({AVERAGE: self.state})
        return future


@pytest.mark.parametrize(
    ("state", "says"), [(StoreLostError("shard 0 is gone"), "shard 0 is gone"), (np.ones(3), "broadcast")]
)
def test_a_store_that_fails_fails_the_average(job: Job, state: Array | StoreLostError, says: str) -> None:
    keys = {key.key: key for key in descriptions.from_builtins(job.store_spec().model_dump(mode="json")).keys}
    with pytest.raises((StoreLostError, ValueError), match=says):
        AveragedStore(Halves(state), keys).pull("w1", 0).result(1)  # type: ignore[arg-type]
