"""The README's own job works when it is pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from acceptance_place import Place
from acceptance_processes import ROOT


def test_the_readme_example_trains_when_pasted(place: Place) -> None:
    blocks = re.findall(r"```python\n(.*?)```", Path(ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    done = subprocess.run(
        [sys.executable, "-c", blocks[0]],
        cwd=place.folder,
        env={**os.environ, "WEFT_URL": place.cluster.url},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"'evaluate/accuracy': ([0-9.]+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > 0.8
