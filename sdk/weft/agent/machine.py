"""How much memory this machine has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of a container, version 2 and 1: what is above is ended by the kernel."""


def memory_bytes() -> int:
    """The machine's memory, or what the container that this process is in may take of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says `max`
            found.append(int(path.read_text()))
    return min(found)
