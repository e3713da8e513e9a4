"""A daemon as a child process: started, looked at, stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import indent

from weft.agent.machine import full_disk
from weft.agent.private import make_directory, opener
from weft.log_lines import readable, telling

LOG_TAIL_LINES = 12
LOG_BYTES = 10 << 20
"""From which on a log is begun anew."""
OLDER_LOGS = 2
"""Of each daemon, beside the one that it writes: `server.log.1` and `server.log.2`, which is older."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to start: a module run by this interpreter, its arguments, and where its output goes."""

    name: str
    module: str
    arguments: Sequence[str]
    log: Path
    directory: Path
    """The working directory."""
    environment: Mapping[str, str]
    """Variables set over those of this process."""


class Process:
    """A started daemon. It is in a session of its own, so that a Ctrl-C reaches this process alone.

    Its standard input is a pipe that is held open here: it closes however this process ends, and the daemon with it.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        make_directory(command.log.parent)
        self._started_at, self._ended_at = time.monotonic(), 0.0
        with open(command.log, "ab", opener=opener) as log:
            self._log_start = log.tell()
            self._popen = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments that this package makes
                [sys.executable, "-m", command.module, *command.arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=command.directory,
                env={**os.environ, **command.environment},
                start_new_session=True,
            )

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        code = self._popen.poll()
        if code is not None and not self._ended_at:
            self._ended_at = time.monotonic()
        return code

    @property
    def lived_s(self) -> float:
        """Seconds that it has run, until its end was seen."""
        return (self._ended_at or time.monotonic()) - self._started_at

    def ask_to_end(self) -> None:
        """SIGTERM, and an end of its standard input. Does not wait."""
        self._popen.terminate()
        self._close_pipe()

    def end(self, grace_s: float) -> None:
        """Waits for the end that was asked for; after `grace_s` SIGKILL."""
        try:
            self._popen.wait(max(grace_s, 0))
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, unless it has ended; returns once it has."""
        self._close_pipe()
        self._popen.kill()
        self._popen.wait()

    def _close_pipe(self) -> None:
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def log_tail(self) -> list[str]:
        """The last lines that this process wrote; none where somebody has deleted its log."""
        try:
            with self.command.log.open("rb") as log:
                log.seek(self._log_start)
                return [line.decode("utf-8", "replace").rstrip() for line in deque(log, LOG_TAIL_LINES)]
        except FileNotFoundError:
            return []

    def bound_log(self) -> None:
        """Begins the log anew where it is large."""
        if begin_anew(self.command.log):
            self._log_start = 0

    def obituary(self) -> str:
        """How it ended: its name, its exit code or signal, and the end of its log."""
        said = [*map(readable, self.log_tail()), *filter(None, [full_disk(self.command.log.parent)])]
        tail = indent("\n".join(said), "  ") or "  (it wrote nothing)"
        return f"{self.ending}; the end of {self.command.log}:\n{tail}"

    def notice_of_death(self, most: int) -> str:
        """How it ended, where its log is, and at most so many lines of it, set in, that may be about this end. None
        where SIGKILL ended it, which leaves it no time to say why."""
        log, here = self.command.log, Path.cwd()
        shown = log.relative_to(here) if log.is_relative_to(here) else log
        full = full_disk(log.parent)  # then nothing could be written to the log
        logged = [] if self.exit_code == -signal.SIGKILL else telling(self.log_tail(), most)
        said = logged if full is None else [full]
        return "\n".join((f"{self.ending}; its log is {shown}", *(f"  {line}" for line in said)))

    @property
    def ending(self) -> str:
        """Its name, and its exit code or signal."""
        code = self.exit_code
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return f"{self.name} ended with {how}"


def begin_anew(log: Path) -> bool:
    """Where the log is large, keeps a copy of it beside it and empties it: whoever writes to it goes on doing so.

    What is written between the two is lost. Nothing is done where the disk has no room for the copy. Whether it was
    emptied.
    """
    older = [log.with_name(f"{log.name}.{number}") for number in range(1, OLDER_LOGS + 1)]
    try:
        if log.stat().st_size < LOG_BYTES:
            return False
        for newer, old in reversed(list(pairwise(older))):
            if newer.exists():
                newer.replace(old)
        with log.open("rb") as source, open(older[0], "wb", opener=opener) as copy:
            shutil.copyfileobj(source, copy)
        os.truncate(log, 0)
    except FileNotFoundError:  # nobody has begun it, or somebody has deleted it: the older ones stay
        return False
    except OSError:
        for each in older:  # so there is room for it the next time
            with contextlib.suppress(OSError):
                each.unlink(missing_ok=True)
        return False
    return True
