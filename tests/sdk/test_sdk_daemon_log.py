"""What a daemon logs to a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

LOGS = """
import logging
from weft.agent.startup import log_to_stderr
log_to_stderr("server")
log = logging.getLogger("weft.server")
log.warning("job %s: %s", "x", "\\x1b]0;owned\\x07")
try:
    raise ValueError("\\x1b[2J\\x9b")
except ValueError:
    log.exception("it broke")
"""


def test_words_of_jobs_in_a_daemon_s_log_command_no_terminal() -> None:
    ours, its = pty.openpty()
    with os.fdopen(ours, "rb", 0) as reader:
        subprocess.run([sys.executable, "-c", LOGS], stderr=its, check=True)
        os.close(its)
        said = reader.read(1 << 16).decode()
    assert r"job x: \u001b]0;owned\u0007" in said
    assert r"ValueError: \u001b[2J\u009b" in said
    assert "\x1b]" not in said


@pytest.mark.parametrize(("hard", "says"), [(200, ""), (30, "only 30 files may be open")])
def test_a_daemon_may_open_as_many_files_as_its_limit_lets_it_and_says_where_those_are_few(
    hard: int, says: str
) -> None:
    source = (
        f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (20, {hard})); "
        "from weft.agent.startup import start_daemon; start_daemon('shard-0'); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == f"({hard}, {hard})\n"
    assert says in done.stderr
    assert bool(done.stderr) == bool(says)
