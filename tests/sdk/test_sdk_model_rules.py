"""A model that holds its own optimizer trains by it, unless a job says another rule."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import weft
from onnx_models import floats, initializer, model, weights
from weft.api.job import JobSpec
from weft.cli.model_options import ModelOptions
from weft.cli.models import job_of_model

make = helper.make_node
PREVIEW = "ai.onnx.preview.training"


def training(lr: float = 0.25, momentum: float = 0.9) -> onnx.ModelProto:
    """loss = mean((x w)^2), and a step of Momentum on w."""
    numbers: Any = {"alpha": momentum, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Mul", ["p", "p"], ["q"]),
        make("ReduceMean", ["q"], ["loss"], keepdims=0),
        make("Gradient", ["w", "x"], ["dw"], domain=PREVIEW, xs=["w"], zs=["x"], y="loss"),
        make("Momentum", ["r", "t", "w", "dw", "v"], ["w_new", "v_new"], "step", domain=PREVIEW, **numbers),
    ]
    values = [weights("w", 3, 1), initializer("r", np.float32(lr))]
    fed = [floats("x", "N", 3), helper.make_tensor_value_info("t", onnx.TensorProto.INT64, []), floats("v", 3, 1)]
    return model(nodes, fed, ["w_new", "v_new"], values, domains=[PREVIEW])


def test_jobs_take_the_files_own_rule() -> None:
    read = weft.from_onnx(training())
    assert read.optimizer == weft.SGD(lr=0.25, momentum=0.9)
    trainable = read.with_values(read.values).with_loss("loss")
    assert weft.job_spec(trainable, data="d.npz", batch_size=4, steps=1).optimizer == read.optimizer
    asked = weft.Adam(lr=0.5)
    assert weft.job_spec(trainable, data="d.npz", batch_size=4, steps=1, optimizer=asked).optimizer == asked


def test_numbers_that_a_rule_does_not_take_are_refused() -> None:
    with pytest.raises(weft.ArgumentError, match=r"the file's optimizer: sgd\.momentum is 2\.0"):
        weft.from_onnx(training(momentum=2.0))


def test_the_command_line_takes_the_files_own_rule(tmp_path: Path) -> None:
    file = tmp_path / "own.onnx"
    file.write_bytes(training().SerializeToString())
    own, asked, other = (rule_of(file, *more) for more in ((None, None), (None, 0.5), ("adam", 0.5)))
    assert own == weft.SGD(lr=0.25, momentum=0.9)
    assert asked == weft.SGD(lr=0.5, momentum=0.9)
    assert other == weft.Adam(lr=0.5)


def rule_of(file: Path, rule: str | None, lr: float | None) -> object:
    said: dict[str, Any] = {each.name: None for each in fields(ModelOptions)}
    said |= {"loss": ["loss"], "data": "d.npz", "batch_size": 4, "optimizer": rule, "lr": lr}
    said |= {"shuffle": False, "workers": 1, "shards": 1, "seed": 0}
    return JobSpec.model_validate_json(job_of_model(file, ModelOptions(**said), steps=1).document).optimizer
