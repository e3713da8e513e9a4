"""Runs whose steps are committed: clipped as plain NumPy clips, and in float16 with a loss scale that recovers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from store_cluster import NamedStore, served
from weft.api.lifecycle import AllocationEvent
from weft.api.store import CommitSpec, LossScalingSpec
from weft_data.schedule import BatchPlan
from weft_graph.passes.draft import Options, Precision
from weft_graph.types import DType
from weft_kernels.kernel import Array
from weft_kvstore.description.records import LossScaling, descriptions
from weft_kvstore.store import StepOutcome
from weft_worker.errors import WorkerError
from weft_worker.training_steps import StepLossScale
from worker_graphs import METRICS, mlp
from worker_jobs import Job, Records, programs_of, run_all, save_data

ROWS, BATCH, STEPS = 90, 30, 12
CLIP = 0.05
"""Far below the norms of this net's gradients, so that every step is clipped."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS, "float32")


def job_of(data: Path, *, slots: int = 1, shards: int = 0, options: Options | None = None, **changes: object) -> Job:
    programs = programs_of(mlp(DType.FLOAT32), METRICS, options)
    return Job(programs, data, STEPS, (0, ROWS), slots=slots, batch=BATCH, shards=("",) * shards, **changes)  # type: ignore[arg-type]


def trained(job: Job) -> tuple[dict[str, Array], list[Records]]:
    """The final parameters, over shards of this process or a store without any."""
    with ExitStack() as stack:
        if job.shards:
            description = descriptions.from_builtins(job.store_spec().model_dump(mode="json"))
            at, _ = stack.enter_context(served(description))
            records = run_all(replace(job, shards=at.shards))
        else:
            store = NamedStore(descriptions.from_builtins(job.store_spec().model_dump(mode="json")))
            stack.callback(store.close)
            records = run_all(job, store.at_slot)
    assert [each.last for each in records] == [(AllocationEvent.DONE, None)] * job.slots
    return load(records[0].uploads[0][0]), records


def newest(records: list[Records], name: str) -> list[tuple[int, float]]:
    """(step, value) of a metric, over all slots."""
    reports = zip(*([one for one in each.metrics if one.split == "train"] for each in records), strict=True)
    return [(some[0].step, sum(one.sums[name] for one in some) / sum(one.samples for one in some)) for some in reports]


def plainly_clipped(job: Job) -> tuple[dict[str, Array], float]:
    """The net of `mlp` trained by descent on clipped gradients, and the last step's norm; float64, in NumPy."""
    with ExitStack() as stack:
        unclipped = replace(job, commit=None, slots=1)
        store = NamedStore(descriptions.from_builtins(unclipped.store_spec().model_dump(mode="json")))
        stack.callback(store.close)
        values = {key.key: store.pull(key.key, 0).result(10).astype(np.float64) for key in job.programs.keys}
    norm = 0.0
    with np.load(job.data) as columns:
        x, labels = columns["x"].astype(np.float64), columns["y"]
    plan = BatchPlan(0, ROWS, BATCH, job.seed, True)
    for step in range(STEPS):
        rows = plan.at(step)[1]
        hidden = x[rows] @ values["w1"] + values["b1"]
        active = np.maximum(hidden, 0)
        scores = active @ values["w2"] + values["b2"]
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(rows)), labels[rows]] -= 1
        shares /= len(rows)
        back = (shares @ values["w2"].T) * (hidden > 0)
        gradients = {"w1": x[rows].T @ back, "b1": back.sum(0), "w2": active.T @ shares, "b2": shares.sum(0)}
        norm = float(np.sqrt(sum((part**2).sum() for part in gradients.values())))
        for key, part in gradients.items():
            values[key] = values[key] - job.lr * part * min(1.0, CLIP / (norm + 1e-6))
    return values, norm


@pytest.mark.parametrize(("slots", "shards"), [(1, 0), (3, 2)])
def test_a_clipped_run_is_that_of_plain_numpy(data: Path, slots: int, shards: int) -> None:
    job = job_of(data, slots=slots, shards=shards, commit=CommitSpec(clip_norm=CLIP))
    found, records = trained(job)
    expected, norm = plainly_clipped(job)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5)
    step, told = newest(records, "gradient_norm")[-1]
    assert step == STEPS
    assert told == pytest.approx(norm, rel=1e-4)


def test_workers_that_update_get_the_clipped_gradient(data: Path) -> None:
    commit = CommitSpec(clip_norm=CLIP)
    on_shards, _ = trained(job_of(data, slots=2, shards=2, commit=commit))
    on_workers, _ = trained(job_of(data, slots=2, shards=2, commit=commit, local=True))
    assert all(on_shards[key].tobytes() == on_workers[key].tobytes() for key in on_shards)


def test_a_slot_without_samples_takes_part_in_every_commit(data: Path) -> None:
    job = replace(job_of(data, slots=3, shards=1, commit=CommitSpec(clip_norm=CLIP)), batch=2)
    _, records = trained(job)
    assert {each.steps[-1] for each in records} == {STEPS}


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
def test_a_net_in_a_half_type_trains_like_one_in_float32(data: Path, precision: Precision) -> None:
    scaling = LossScalingSpec() if precision is Precision.FLOAT16 else None
    commit = None if scaling is None else CommitSpec(loss_scaling=scaling)
    wide, wide_records = trained(job_of(data, slots=2, shards=1))
    narrow, records = trained(job_of(data, slots=2, shards=1, options=Options(precision=precision), commit=commit))
    assert {array.dtype for array in narrow.values()} == {np.dtype(np.float32)}, "the masters"
    assert newest(records, "loss")[-1][1] == pytest.approx(newest(wide_records, "loss")[-1][1], rel=0.02)
    assert any(narrow[key].tobytes() != wide[key].tobytes() for key in wide), "it did compute in the half type"


def test_a_run_in_float16_skips_the_steps_that_overflow_and_recovers(tmp_path: Path) -> None:
    """The scale begins so high that gradients overflow: it halves until they fit, and grows again."""
    data = save_data(tmp_path / "samples.npz", ROWS, "float32")
    commit = CommitSpec(loss_scaling=LossScalingSpec(initial=2.0**22, growth_interval=4))
    job = job_of(data, slots=2, shards=2, options=Options(precision=Precision.FLOAT16), commit=commit)
    found, records = trained(replace(job, steps=30))
    skipped = [log.message for log in records[0].logs]
    assert skipped
    assert "step 1 was skipped: its gradient is not finite; the loss scale is 2.09715e+06 now" in skipped[0]
    assert len(skipped) < 20, "most steps train"
    assert all(np.isfinite(array).all() for array in found.values())
    scales = [scale for _, scale in newest(records, "loss_scale")]
    assert all(np.log2(scale) == int(np.log2(scale)) for scale in scales)
    losses = [loss for _, loss in newest(records, "loss")]
    assert losses[-1] < losses[0]


def test_a_worker_does_not_go_on_with_another_scale_than_the_shards() -> None:
    scale = StepLossScale(LossScaling(4.0, 2))
    assert scale.follow(StepOutcome(0, 1.0, finite=True, loss_scale=4.0)) is None
    with pytest.raises(WorkerError, match=r"step 2: the shards divided by the loss scale 2\.0, .* 4\.0"):
        scale.follow(StepOutcome(1, 1.0, finite=True, loss_scale=2.0))
