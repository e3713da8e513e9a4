"""The processor's time of a process's threads, from the kernel's own count in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ZEROMQ_NAME = "ZMQbg"
"""How libzmq names its threads."""


def thread_times_s(pid: int) -> dict[int, float]:
    """Seconds on a processor of each thread, by its number. Raises OSError where the kernel does not count them."""
    found: dict[int, float] = {}
    for directory in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[int(directory.name)] = int((directory / "schedstat").read_text().split()[0]) * 1e-9
        except FileNotFoundError:
            if directory.exists():
                raise
    return found


def zeromq_threads(pid: int) -> set[int]:
    """Those of ZeroMQ, by number."""
    names = {directory.name: (directory / "comm").read_text() for directory in Path(f"/proc/{pid}/task").iterdir()}
    return {int(number) for number, name in names.items() if name.startswith(ZEROMQ_NAME)}


def summed(before: Mapping[int, float], after: Mapping[int, float], threads: set[int]) -> float:
    """Seconds that these threads had between two counts."""
    return sum(after[number] - before.get(number, 0.0) for number in threads if number in after)
