"""Processes that share memory with a test, and what the kernel says of shared memory."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 60.0


class Child:
    """Python that runs `script` with `arguments`; speaks in lines. Killed at the end of the with."""

    def __init__(self, script: str, *arguments: str, before: tuple[str, ...] = ()) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [*before, sys.executable, "-u", "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> str:
        """What it says next. Fails after `WAIT_S`, or when it has ended."""
        assert self._process.stdout is not None
        said = bytearray()
        until = time.monotonic() + WAIT_S
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(until - time.monotonic(), 0))
            assert ready, f"the child said nothing for {WAIT_S} s after {said!r}"
            more = self._process.stdout.read(1)
            assert more, f"the child ended after {said!r}"
            said += more
        return said.decode().rstrip("\n")

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")

    def kill(self) -> None:
        """SIGKILL: no good-bye, no clean-up."""
        self._process.kill()
        self._process.wait(WAIT_S)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def wait_until(holds: Callable[[], bool], *files: int) -> None:
    """Until it holds; looked at again when one of the descriptors has something, or every few milliseconds."""
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until, f"it did not come to hold within {WAIT_S} s"
        select.select([fd for fd in files if fd >= 0], [], [], 0.005)


def arena_maps(pid: int | str = "self") -> int:
    """How many arenas a process has mapped; 0 for one that is no more."""
    try:
        return Path(f"/proc/{pid}/maps").read_text().count("/memfd:weft-arena")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def arenas_anywhere() -> set[str]:
    """Processes and arenas, "PID INODE", by all mappings and descriptors that this user may see."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines = [
                line.split() for line in (process / "maps").read_text().splitlines() if "/memfd:weft-arena" in line
            ]
            found |= {f"{process.name} {line[4]}" for line in lines}
            for fd in (process / "fd").iterdir():
                if os.readlink(fd).startswith("/memfd:weft-arena"):
                    found.add(f"{process.name} {fd.stat().st_ino}")
        except OSError:
            continue  # It has ended meanwhile, or is another user's.
    return found
