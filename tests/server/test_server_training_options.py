"""Precision, clipping and loss scaling of a submitted job: what the store is told, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from server_specs import save_rows, spec_json
from weft.api.job import JobSpec
from weft.api.store import CommitSpec, LossScalingSpec
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import CompressionDescription, Kind, descriptions
from weft_server.planning.check import read_and_check
from weft_server.planning.dry_run import dry_run_of
from weft_server.planning.estimate import Bounds
from weft_server.planning.plan import JobPlan
from weft_server.refusals import JobRefusedError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "rows.npz")


def planned(rows: Path, **changes: Any) -> JobPlan:
    return read_and_check(JobSpec.model_validate(spec_json(rows, **changes)), None, Bounds())


def refused(rows: Path, **changes: Any) -> list[tuple[str, str]]:
    with pytest.raises(JobRefusedError) as caught:
        planned(rows, **changes)
    return [(error.pointer, error.detail) for error in caught.value.errors]


def test_a_plain_job_commits_nothing_and_its_text_says_nothing_of_it(rows: Path) -> None:
    plan = planned(rows)
    assert plan.commit is None
    assert plan.store("job", 1, ["tcp://a:1"]).commit is None
    assert "round trip" not in dry_run_of(plan, None).text


@pytest.mark.parametrize(
    ("changes", "commit"),
    [
        ({"clip_norm": 2.0}, CommitSpec(clip_norm=2.0)),
        ({"on_nan": "skip"}, CommitSpec(skip=True)),
        ({"precision": "bfloat16"}, None),
        ({"precision": "float16"}, CommitSpec(loss_scaling=LossScalingSpec(initial=65536.0, growth_interval=2000))),
        (
            {"precision": "float16", "clip_norm": 1.0, "loss_scale": {"initial": 4.0, "growth_interval": 3}},
            CommitSpec(clip_norm=1.0, loss_scaling=LossScalingSpec(initial=4.0, growth_interval=3)),
        ),
    ],
)
def test_the_store_is_told_what_the_slots_agree_on(
    rows: Path, changes: dict[str, Any], commit: CommitSpec | None
) -> None:
    told = planned(rows, **changes).store("job", 1, ["tcp://a:1"])
    assert told.commit == commit
    check_description(descriptions.from_builtins(told.model_dump(mode="json")))


def test_a_dry_run_says_what_a_commit_costs_and_what_a_half_type_saves(rows: Path) -> None:
    text = " ".join(dry_run_of(planned(rows, clip_norm=2.5), None).text.split())
    assert "wait for the last one, to shorten the whole gradient to a norm of 2.5: one more round trip a step" in text
    text = " ".join(dry_run_of(planned(rows, precision="float16"), None).text.split())
    assert "to skip a step whose gradient overflows under the loss scale" in text


def test_accumulating_takes_the_memory_of_a_part_and_the_sums(rows: Path) -> None:
    one, two = (dry_run_of(planned(rows, accumulate=parts), None).worker_memory for parts in (1, 2))
    assert one.train is not None
    assert two.train is not None
    assert two.train.intermediate_bytes < one.train.intermediate_bytes
    assert two.train_peak_bytes == two.train.peak_bytes + two.parameter_bytes


def test_a_plan_has_no_tf32_unless_the_job_allows_it(rows: Path) -> None:
    assert not planned(rows).allow_tf32
    assert planned(rows, allow_tf32=True).allow_tf32


ASYNC = {"workers": 2, "mode": "async"}
WORKERS = {"workers": 2, "update": "workers"}


@pytest.mark.parametrize(
    ("changes", "pointer", "says"),
    [
        ({"clip_norm": 1.0, "parallelism": ASYNC}, "/clip_norm", "or use sync mode"),
        ({"on_nan": "skip", "parallelism": ASYNC}, "/on_nan", "or use sync mode"),
        ({"on_nan": "skip", "parallelism": WORKERS}, "/on_nan", "workers that update cannot skip it"),
        ({"precision": "float16", "parallelism": ASYNC}, "/precision", "or use sync mode"),
        ({"precision": "float16", "parallelism": WORKERS}, "/precision", "workers that update cannot skip"),
        ({"loss_scale": {}, "parallelism": WORKERS}, "/loss_scale", "workers that update cannot skip"),
        ({"accumulate": 3}, "/accumulate", "2 samples of a step, which cannot be computed in 3 parts"),
        ({"ema": {}, "parallelism": WORKERS}, "/ema", "kept by the shards"),
        ({"evaluate_ema": True}, "/evaluate_ema", "keeps no averages"),
        ({"clip_norm": 1.0, "metrics": {"gradient_norm": "loss"}}, "/metrics/gradient_norm", "another name"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_pointer(
    rows: Path, changes: dict[str, Any], pointer: str, says: str
) -> None:
    ((where, detail),) = refused(rows, **changes)
    assert where == pointer
    assert says in detail


def test_averages_count_as_state_on_the_shards_and_in_documents(rows: Path) -> None:
    plain, kept = planned(rows), planned(rows, ema={"decay": 0.99}, evaluate_ema=True)
    assert (plain.state_arrays, plain.kept_arrays) == (0, 0)
    assert (kept.state_arrays, kept.kept_arrays) == (1, 1)
    adam = planned(rows, optimizer={"name": "adam"}, ema={}, keep_state=True)
    assert (adam.state_arrays, adam.kept_arrays) == (3, 3)
    told = kept.store("job", 1, ["tcp://a:1"])
    check_description(descriptions.from_builtins(told.model_dump(mode="json")))
    memory = [dry_run_of(plan, None).store_memory.state_bytes for plan in (plain, kept)]
    assert memory == [0, dry_run_of(plain, None).store_memory.parameter_bytes]


def test_clipping_goes_with_workers_that_update(rows: Path) -> None:
    told = planned(rows, clip_norm=1.0, parallelism=WORKERS).store("job", 1, ["tcp://a:1"])
    check_description(descriptions.from_builtins(told.model_dump(mode="json")))


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "float8"},
        {"clip_norm": 0},
        {"clip_norm": "inf"},
        {"clip_norm": -1},
        {"loss_scale": {"initial": 3.0}},
        {"loss_scale": {"initial": 2.0**30}},
        {"loss_scale": {"growth_interval": 0}},
        {"ema": {"decay": 1.0}},
        {"ema": {"start": -1}},
        {"accumulate": 0},
    ],
)
def test_numbers_that_mean_nothing_are_no_job(rows: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(changes))):
        JobSpec.model_validate(spec_json(rows, **changes))


def test_the_store_is_told_what_travels_compressed(rows: Path) -> None:
    setting = {"gradients": {"kind": "2bit", "threshold": 0.5}, "weights": {"kind": "bf16", "residual": False}}
    told = planned(rows, compression=setting).store("job", 1, ["tcp://a:1"])
    description = descriptions.from_builtins(told.model_dump(mode="json"))
    check_description(description)
    assert description.compression is not None
    assert description.compression.gradients == CompressionDescription(Kind.TWO_BIT, threshold=0.5)
