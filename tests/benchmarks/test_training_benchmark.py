"""The benchmark of training: what it measures and writes, on models that are tiny. Nothing here is timed."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "training.py"


def run(*arguments: str, torch_python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--tiny", "--rounds", "1", "--seconds", "0.1", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TORCH_PYTHON": torch_python},
    )


@pytest.mark.parametrize("model", ["mlp", "lenet", "resnet18-32px", "decoder-4x256", "embedding-bag"])
def test_both_sides_train_as_many_numbers(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    ours, theirs = importlib.import_module("training"), importlib.import_module("training_torch")
    written = ours.MODELS[model]
    parameters = written.build(written.tiny).graph().parameters
    trained = sum(math.prod(each.type.static_shape) for each in parameters if each.trainable)
    assert trained == sum(each.numel() for each in theirs.MODELS[model](written.tiny).parameters())


def test_a_case_is_held_against_pytorch_in_the_same_run(tmp_path: Path) -> None:
    case, bar = "mlp-1w", 1.0
    pytest.importorskip("torch")
    file = tmp_path / "training.json"
    ended = run("--case", case, "--json", str(file))
    assert ended.returncode == 0, ended.stderr
    document = json.loads(file.read_text())
    assert document["conditions"]["sizes"] == "tiny"
    (row,) = document["rows"]
    assert row["case"] == case
    assert row["bar"] == bar
    assert row["peer_name"].startswith("PyTorch ")
    assert row["weft"] > 0
    assert row["ratio"] == pytest.approx(row["weft"] / row["peer"])
    assert len(row["weft_rounds"]) == len(row["peer_rounds"]) == 1
    assert case in ended.stdout


def test_without_pytorch_nothing_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "training.json"
    ended = run("--json", str(file), torch_python=str(tmp_path / "none"))
    assert ended.returncode == 2
    assert "TORCH_PYTHON" in ended.stdout
    assert not file.exists()
