"""The README's own job works when it is pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from acceptance_place import Place
from acceptance_processes import ROOT


def snippet() -> str:
    blocks = re.findall(r"```python\n(.*?)```", Path(ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


def test_the_readme_example_is_clean_by_the_projects_own_rules_when_it_is_saved_here() -> None:
    ruff, saved = [sys.executable, "-m", "ruff"], ["--stdin-filename", str(ROOT / "own_job.py"), "-"]
    for check in (["check"], ["format", "--diff"]):
        done = subprocess.run(
            [*ruff, *check, *saved], input=snippet(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_example_trains_when_pasted(place: Place) -> None:
    shorter = snippet().replace("epochs=40", "epochs=10")
    assert shorter != snippet()
    done = subprocess.run(
        [sys.executable, "-c", shorter],
        cwd=place.folder,
        env={**os.environ, "WEFT_URL": place.cluster.url},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reached = re.findall(r"eval .*accuracy ([0-9.]+)", done.stdout)
    assert reached, done.stdout
    assert float(reached[-1]) > 0.6
