"""Steps that are computed in parts: the results of one part, with fewer values at a time."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from store_cluster import served
from weft.api.lifecycle import AllocationEvent
from weft.api.store import CommitSpec
from weft_graph.ir import Graph
from weft_kernels.kernel import Array
from weft_kvstore.description.records import descriptions
from weft_worker.schedule import ScheduledStep, parts_of
from weft_worker.task import schedule_of, task_of
from worker_graphs import METRICS, bags, mlp, normalized
from worker_jobs import BAG_COLUMNS, Job, Records, programs_of, run_all, save_bags, save_data

ROWS, BATCH = 90, 32
"""A pass ends with a batch of 26: over two slots and three parts, no two of which are equal."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS)


def job_of(graph: Graph, data: Path, **changes: object) -> Job:
    return Job(programs_of(graph, METRICS), data, 9, (0, ROWS), batch=BATCH, shards=("",), **changes)  # type: ignore[arg-type]


def trained(job: Job, **settings: object) -> tuple[dict[str, Array], list[Records]]:
    with ExitStack() as stack:
        at, _ = stack.enter_context(served(descriptions.from_builtins(job.store_spec().model_dump(mode="json"))))
        records = run_all(replace(job, shards=at.shards), **settings)
    assert [each.last for each in records] == [(AllocationEvent.DONE, None)] * job.slots
    return load(records[0].uploads[0][0]), records


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_parts_of_a_step_give_its_results_with_the_same_dropout(data: Path, parts: int) -> None:
    job = job_of(mlp(dropout=0.3), data, slots=2)
    whole, records = trained(job)
    cut, cut_records = trained(replace(job, accumulate=parts))
    for key, value in whole.items():
        np.testing.assert_allclose(cut[key], value, rtol=1e-9, atol=1e-12)
    for one, other in zip(records, cut_records, strict=True):
        assert [report.samples for report in one.metrics] == [report.samples for report in other.metrics]
        for report, again in zip(one.metrics, other.metrics, strict=True):
            assert again.sums == pytest.approx(report.sums)


@pytest.mark.parametrize(
    "settings", [{"serial": True}, {"arena": False}, {"io_threads": 1, "compute_threads": 1}], ids=str
)
def test_engines_and_arenas_change_no_bit(data: Path, settings: dict[str, object]) -> None:
    job = job_of(mlp(dropout=0.3), data, slots=2, accumulate=3, commit=CommitSpec(clip_norm=0.05))
    usual, other = trained(job)[0], trained(job, **settings)[0]
    assert all(usual[key].tobytes() == other[key].tobytes() for key in usual)


def test_workers_that_update_get_the_sum_of_the_parts(data: Path) -> None:
    job = job_of(mlp(), data, slots=2, accumulate=3)
    on_shards, on_workers = trained(job)[0], trained(replace(job, local=True))[0]
    assert all(on_shards[key].tobytes() == on_workers[key].tobytes() for key in on_shards)


def test_parameters_travel_once_a_step_however_many_parts_it_has(data: Path) -> None:
    job = job_of(mlp(), data)
    traffic = [trained(replace(job, accumulate=parts))[1][0].traffic[-1] for parts in (1, 4)]
    assert traffic[1].received_bytes < 1.5 * traffic[0].received_bytes
    assert traffic[1].sent_bytes < 1.5 * traffic[0].sent_bytes


def test_rows_of_tables_are_united_over_the_parts(tmp_path: Path) -> None:
    bag = save_bags(tmp_path / "bags.npz", ROWS)
    job = replace(job_of(bags(), bag, slots=2), columns=BAG_COLUMNS)
    whole, cut = trained(job)[0], trained(replace(job, accumulate=3))[0]
    for key, value in whole.items():
        np.testing.assert_allclose(cut[key], value, rtol=1e-9, atol=1e-12)


def test_running_statistics_are_the_mean_over_the_parts(data: Path) -> None:
    """After one step: 0.9 of what they were and 0.1 of the parts' mean."""
    job = replace(job_of(normalized(), data), steps=1)
    found, _ = trained(replace(job, accumulate=2))
    first, _ = trained(replace(job, lr=0.0))
    schedule = schedule_of(task_of(job.allocation(0)), ROWS)
    with np.load(data) as columns:
        parts = [columns["x"][part.rows] @ first["w1"] + first["b1"] for part in parts_of(schedule.at(0), 2)]
    np.testing.assert_allclose(found["mean"], 0.1 * np.mean([part.mean(axis=0) for part in parts], axis=0), rtol=1e-9)


def test_a_clipped_step_in_parts_is_clipped_once(data: Path) -> None:
    job = job_of(mlp(), data, slots=2, commit=CommitSpec(clip_norm=0.05))
    whole, cut = trained(job)[0], trained(replace(job, accumulate=4))[0]
    for key, value in whole.items():
        np.testing.assert_allclose(cut[key], value, rtol=1e-9, atol=1e-12)


def test_a_step_has_no_more_parts_than_samples() -> None:
    step = ScheduledStep(0, 7, 2, np.arange(10, 15), 5 / 7, reports=False, evaluates=False)
    parts = parts_of(step, 3)
    assert [part.rows.tolist() for part in parts] == [[10, 11], [12, 13], [14]]
    assert [part.first_sample for part in parts] == [2, 4, 6]
    assert sum(part.share for part in parts) == pytest.approx(5 / 7)
    assert [len(part.rows) for part in parts_of(step, 9)] == [1] * 5
