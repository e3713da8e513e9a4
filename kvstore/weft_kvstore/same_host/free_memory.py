"""How much memory a process may still take: of the machine, and of its control group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def free_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can be had without ending a process; None where the system does not say.

    A control group's limit counts shared memory of whoever touches it first, and says no by killing.
    """
    found = [*_machine(proc), *_groups(proc, groups)]
    return max(min(found), 0) if found else None


def _machine(proc: Path) -> Iterator[int]:
    for line in _text(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield int(rest.split()[0]) * 1024


def _groups(proc: Path, groups: Path) -> Iterator[int]:
    """Of each group (version 2) from the process's own up to the root that is mounted."""
    own = [line[3:] for line in _text(proc / "self" / "cgroup").splitlines() if line.startswith("0::/")]
    place = Path(own[0].lstrip("/")) if own else Path()
    for one in (place, *place.parents):
        limit, used = _text(groups / one / "memory.max").strip(), _text(groups / one / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            yield int(limit) - int(used)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
