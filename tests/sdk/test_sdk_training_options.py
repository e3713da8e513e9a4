"""How a job trains, said by keyword and on the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import weft
from weft import nn
from weft.api.compression import CompressionSpec, StoreCompressionSpec
from weft.api.job import JobSpec, Precision, Recompute
from weft.cli.training_options import TrainingOptions, changed
from weft.errors import ArgumentError


def spec_of(tmp_path: Path, **arguments: Any) -> JobSpec:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    x, y = weft.input("x", ("batch", 3)), weft.input("y", ("batch",), dtype="int64")
    return weft.job_spec(nn.cross_entropy(nn.Linear(3, 2)(x), y), data=str(data), batch_size=2, steps=1, **arguments)


WRONG_COMPRESSIONS: list[dict[str, Any]] = [
    {"upwards": {}},
    {"gradients": {"kind": "3bit"}},
    {"gradients": {"kind": "2bit"}},
    {"gradients": {"kind": "2bit", "threshold": 0}},
    {"gradients": {"kind": "2bit", "threshold": math.nan}},
    {"gradients": {"kind": "bf16", "threshold": 0.5}},
    {"gradients": {"kind": "topk"}},
    {"gradients": {"kind": "topk", "ratio": 0.5, "count": 3}},
    {"merged": {"kind": "topk", "ratio": 1.5}},
    {"merged": {"kind": "2bit", "threshold": 1, "residual": False}},
    {"weights": {"kind": "bf16"}},
    {"weights": {"kind": "2bit", "threshold": 1}},
    {"least_bytes": -1},
]


def test_every_option_is_a_keyword(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        precision="bfloat16",
        allow_tf32=True,
        clip_norm=1.0,
        loss_scale={"initial": 4.0},
        accumulate=2,
        ema=weft.EMA(0.9, evaluate=True),
        communication=weft.Communication(compression={"gradients": {"kind": "2bit", "threshold": 0.5}}),
    )
    assert spec.compression is not None
    assert spec.compression.gradients == CompressionSpec(kind="2bit", threshold=0.5)
    assert spec.precision is Precision.BFLOAT16
    assert spec.allow_tf32
    assert (spec.clip_norm, spec.accumulate, spec.evaluate_ema) == (1.0, 2, True)
    assert spec.loss_scale is not None
    assert (spec.loss_scale.initial, spec.loss_scale.growth_interval) == (4.0, 2000)
    assert spec.ema is not None
    assert spec.ema.decay == 0.9
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    "arguments",
    [{"precision": "int8"}, {"clip_norm": 0}, {"loss_scale": {"initial": 3}}, {"accumulate": 0}, {"ema": 1.5}]
    + [{"communication": weft.Communication(compression=wrong)} for wrong in WRONG_COMPRESSIONS],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="compression" if "communication" in arguments else next(iter(arguments))):
        spec_of(tmp_path, **arguments)


def test_what_is_said_on_the_command_line_stands_in_the_place_of_the_jobs_own() -> None:
    changes = TrainingOptions(
        recompute=Recompute.SEGMENTS,
        precision=Precision.FLOAT16,
        clip_norm=2.0,
        accumulate=3,
        ema="0.99:5",
        evaluate_ema=True,
    ).fields()
    document = json.loads(changed(b'{"name": "a", "clip_norm": 7, "accumulate": 1}', changes))
    assert document == {
        "name": "a",
        "recompute": "segments",
        "precision": "float16",
        "clip_norm": 2.0,
        "accumulate": 3,
        "ema": {"decay": 0.99, "start": 5},
        "evaluate_ema": True,
    }


def test_where_nothing_is_said_the_document_stays_as_it_is_to_the_byte() -> None:
    assert changed(b'{ "name":"a"}', TrainingOptions().fields()) == b'{ "name":"a"}'


@pytest.mark.parametrize(("text", "average"), [("uniform", {}), ("uniform:7", {"start": 7}), ("0.5", {"decay": 0.5})])
def test_averages_are_said_in_a_word(text: str, average: dict[str, Any]) -> None:
    assert TrainingOptions(ema=text).fields() == {"ema": average}


@pytest.mark.parametrize("text", ["much", "0.9:soon", ""])
def test_an_average_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no decay"):
        TrainingOptions(ema=text).fields()


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("bf16", {"kind": "bf16"}),
        ("2bit:0.25", {"kind": "2bit", "threshold": 0.25}),
        ("topk:0.01", {"kind": "topk", "ratio": 0.01}),
    ],
)
def test_compression_is_said_in_a_word(text: str, one: dict[str, Any]) -> None:
    told = TrainingOptions(compression=text).fields()
    assert told == {"compression": {"gradients": one, "merged": one}}
    StoreCompressionSpec.model_validate(told["compression"])


@pytest.mark.parametrize("text", ["2bit", "bf16:1", "topk:many", "zip", ""])
def test_a_compression_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is none of bf16"):
        TrainingOptions(compression=text).fields()
