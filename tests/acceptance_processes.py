"""Looking at processes from outside, through /proc: what a test starts, and what it leaves behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import weft

ROOT = Path(__file__).parents[1]
POLL_S = 0.05
DEADLINE_S = 60.0
"""A daemon takes seconds to start, and several times as many where it shares a slow machine with other tests."""


def load_script(path: str) -> ModuleType:
    """A script of the repository as a module; its `if __name__` part does not run."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def descendants(pid: int) -> set[int]:
    """All running processes below `pid`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    open_pids = [pid]
    while open_pids:
        below = children.get(open_pids.pop(), [])
        found.update(below)
        open_pids.extend(below)
    return {one for one in found if alive(one)}


def family(cluster: weft.Cluster, *names: str) -> list[int]:
    """The process ids of these daemons, and of all processes that they have."""
    daemons = [process.pid for process in cluster.processes if process.name in names]
    return [pid for daemon in daemons for pid in (daemon, *descendants(daemon))]


@contextmanager
def standing_still(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def await_that(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Returns once the condition holds. Fails, saying what was waited for, after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s in vain for {what}"
        time.sleep(POLL_S)
