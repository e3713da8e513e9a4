"""The Python of docs/first-job.md runs from top to bottom, as it is typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import weft
from acceptance_place import Place
from acceptance_processes import ROOT


def test_the_page_runs_from_top_to_bottom(place: Place, client: weft.Client) -> None:
    blocks = re.findall(r"```python\n(.*?)```", Path(ROOT / "docs" / "first-job.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 6
    blocks[-1] = shorter = blocks[-1].replace("epochs=40", "epochs=20")
    assert "epochs=20," in shorter
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=place.folder,
        env={**os.environ, "WEFT_URL": place.cluster.url},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # What it prints shows something: numbers that are no zeros, and dropout that makes others of them.
    inference, training = re.findall(r"\[\[.*?\]\]", done.stdout, flags=re.DOTALL)[:2]
    assert inference != training
    assert all(float(number) for number in re.findall(r"-?\d[\d.e-]*", inference))
    reached = [float(accuracy) for accuracy in re.findall(r"eval .*accuracy ([0-9.]+)", done.stdout)]
    assert min(reached[9], reached[-1]) > 0.85, done.stdout  # the first job's tenth pass, the table's last
    assert "<DryRun job steps=250 " in done.stdout
    assert client.dry_run((place.folder / "job.json").read_text()).steps == 250
