"""The benchmark of the rules: what it measures and writes. Nothing here is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from weft_graph.rules.built_in import BUILT_IN
from weft_graph.rules.torch_variants import VARIANTS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rules.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--elements", "5000", "--rounds", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_rule_is_held_against_a_copy_of_as_many_bytes(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    ended = run("--json", str(file))
    assert ended.returncode == 0, ended.stderr
    document = json.loads(file.read_text())
    assert document["conditions"]["elements"] == 5000
    names = [*BUILT_IN, *sorted(VARIANTS)]
    assert [row["case"] for row in document["rows"]] == [f"{name}-float32" for name in names]
    for name, row in zip(names, document["rows"], strict=True):
        if name in BUILT_IN:
            assert row["moved_bytes"] == BUILT_IN[name].moves * 5000 * 4
        assert row["ratio"] == pytest.approx(row["weft_ms"] / row["peer_ms"])
        assert row["ratio"] == pytest.approx(row["copy_gigabytes_per_s"] / row["gigabytes_per_s"])
        assert f"{name}-float32" in ended.stdout
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_or_run_is_said(tmp_path: Path) -> None:
    ended = run("--rule", "sgd", "--dtype", "float64", "--json", str(tmp_path / "none" / "rules.json"))
    assert ended.returncode == 1
    assert "sgd-float64" in ended.stdout
    assert "failed: " in ended.stdout
    assert run("--rule", "lion").returncode == 2
