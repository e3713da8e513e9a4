"""Workers whose gradients and values travel compressed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from store_cluster import served
from weft.api.compression import CompressionSpec, StoreCompressionSpec
from weft.api.lifecycle import AllocationEvent
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import descriptions
from worker_graphs import METRICS, mlp
from worker_jobs import Job, programs_of, run_all, save_data

TWO_BIT = CompressionSpec(kind="2bit", threshold=0.05)
MERGED = CompressionSpec(kind="2bit", threshold=0.1)
"""Thresholds of the size of the larger gradients; of two slots' sum twice as large."""
HALF = CompressionSpec(kind="bf16", residual=False)
ROWS = 240


@pytest.fixture
def job(tmp_path: Path) -> Job:
    data = save_data(tmp_path / "samples.npz", ROWS)
    return Job(programs_of(mlp(), METRICS), data, 40, (0, ROWS), slots=2, batch=60, lr=0.05, evaluate=(0, ROWS))


def trained(job: Job) -> tuple[dict[str, Array], float]:
    """The parameters that are kept, and the loss at the end."""
    with ExitStack() as stack:
        job = replace(job, shards=("", ""))
        at, _ = stack.enter_context(served(descriptions.from_builtins(job.store_spec().model_dump(mode="json"))))
        records = run_all(replace(job, shards=at.shards))
    assert [each.last for each in records] == [(AllocationEvent.DONE, None)] * job.slots
    last = [[report for report in each.metrics if report.split == "evaluate"][-1] for each in records]
    loss = sum(report.sums["loss"] for report in last) / sum(report.samples for report in last)
    return load(records[0].uploads[0][0]), loss


@pytest.mark.parametrize("local", [False, True], ids=["shards update", "workers update"])
def test_a_job_learns_as_much(job: Job, local: bool) -> None:
    setting = StoreCompressionSpec(gradients=TWO_BIT, merged=MERGED, weights=HALF, least_bytes=0)
    begun = trained(replace(job, steps=1, local=local))[1]
    whole, compressed = (trained(replace(job, local=local, compression=one)) for one in (None, setting))
    assert whole[1] < 0.9 * begun
    assert abs(compressed[1] - whole[1]) < 0.2 * (begun - whole[1]), "what has begun to be owed has not all come"
    assert any(whole[0][key].tobytes() != compressed[0][key].tobytes() for key in whole[0])


def test_parameters_that_are_kept_are_the_shards_to_the_bit(job: Job) -> None:
    """A worker reads weights of 8 bits of precision; the document has those of 24."""
    kept, _ = trained(replace(job, compression=StoreCompressionSpec(weights=HALF, least_bytes=0), evaluate_every=6))
    bits = np.concatenate([value.reshape(-1) for value in kept.values()]).view(np.uint32) & 0xFFFF
    assert np.count_nonzero(bits) > 0.9 * bits.size
