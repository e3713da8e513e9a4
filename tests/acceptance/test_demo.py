"""The script of `make demo`'s first job, as a newcomer runs it."""

from __future__ import annotations

import re
import subprocess
import sys

from acceptance_processes import ROOT


def test_the_demo_trains_and_says_what_to_try_next() -> None:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", "1"]  # of ten
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"accuracy\D*([01]\.\d+)", done.stdout)
    assert found, done.stdout
    assert float(found[-1]) >= 0.8
    assert "weft up" in done.stdout
    assert "takes less than a minute" in done.stdout
