"""What a daemon logs to a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

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
