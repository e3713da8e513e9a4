"""How much memory and room on its disks this machine has."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of a container, version 2 and 1: what is above is ended by the kernel."""


SCARCE_BYTES = 1 << 20
"""Less than that is free on a disk that counts as full: a database and its log need some pages more."""


def full_disk(folder: Path, least: int = SCARCE_BYTES) -> str | None:
    """What is said of the folder's disk where less than that is free, with the remedy; else None. None too for no
    folder."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    needed = "" if least == SCARCE_BYTES else f", and {least} are needed"
    return f"the disk of {folder} is full ({free} bytes are free{needed}): make room on it" if free < least else None


def memory_bytes() -> int:
    """The machine's memory, or what the container that this process is in may take of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says `max`
            found.append(int(path.read_text()))
    return min(found)


def exhausted(error: Exception) -> str | None:
    """The error for people where it comes from a lack of memory or of file descriptors, with what this process may
    take; else None."""
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        whose = (
            f"this process may have {most}, `ulimit -n` raises that" if error.errno == errno.EMFILE else "system-wide"
        )
        return f"too many open files: {whose}"
    if not isinstance(error, MemoryError) and not isinstance(error.__cause__, MemoryError):
        return None
    soft, most = resource.getrlimit(resource.RLIMIT_DATA)  # What it shares with others is taken off the first.
    most = soft if most == resource.RLIM_INFINITY else most
    bound = "" if most == resource.RLIM_INFINITY else f"; it may take {most} bytes here (--job-memory)"
    return f"out of memory: {str(error) or type(error).__name__}{bound}"
