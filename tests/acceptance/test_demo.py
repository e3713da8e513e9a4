"""The script of `make demo`'s first job, as a newcomer runs it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from acceptance_processes import ROOT, alive, await_that, descendants

COMMAND = [sys.executable, str(ROOT / "examples" / "digits.py")]


def test_the_demo_trains_and_says_what_to_try_next() -> None:
    command = [*COMMAND, "--epochs", "1"]  # of ten
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"accuracy\D*([01]\.\d+)", done.stdout)
    assert found, done.stdout
    assert float(found[-1]) >= 0.8
    assert "weft up" in done.stdout
    assert "takes less than a minute" in done.stdout


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_the_demo_leaves_no_process() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:  # once steps are shown, everything runs
            if "step" in line:
                break
        below = descendants(demo.pid)
        assert len(below) >= 5, "a server, two shards, two workers"
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait(timeout=60) != 0
    await_that(lambda: not any(alive(pid) for pid in below), "its daemons to end", deadline_s=60)
