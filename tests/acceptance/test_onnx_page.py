"""The Python and the commands of docs/onnx.md run as they are typed, on a decoder that PyTorch exported."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import weft
from acceptance_place import Place
from acceptance_processes import ROOT

MODELS = Path(__file__).parents[1] / "torch_models"


def blocks(kind: str) -> list[str]:
    """Of the part of the page for users, what needs PyTorch left out."""
    page = (ROOT / "docs" / "onnx.md").read_text().partition("## The reader")[0]
    found = re.findall(rf"```{kind}\n(.*?)```", page, flags=re.DOTALL)
    return [block for block in found if "import torch" not in block]


def run(place: Place, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place.folder,
        env={**os.environ, "WEFT_URL": place.cluster.url},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_runs_as_it_is_typed(place: Place, client: weft.Client) -> None:
    shutil.copy(MODELS / "trained_decoder.onnx", place.folder / "decoder.onnx")
    shutil.copy(MODELS / "trained_decoder.npz", place.folder / "tokens.npz")
    python = blocks("python")
    assert len(python) == 2
    said = run(place, "\n".join(python))
    assert "parameters that train (28 of 28" in said
    assert list(weft.from_onnx(place.folder / "trained.onnx")) == ["logits"]
    commands = blocks("sh")[0].replace("\\\n", " ").replace("--watch", "-o json")
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if "ID" in words:
            newest = next(iter(client.jobs()))
            newest.wait(timeout_s=180)
            words = [newest.id if word == "ID" else word for word in words]
        place.printed(*words[1:])
    newest = next(iter(client.jobs()))
    assert newest.job.name == "decoder"
    newest.wait(timeout_s=180)
    assert newest.job.metrics["train/loss"] < 2
