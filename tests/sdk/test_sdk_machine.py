"""What a machine has."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from weft.agent import machine


def test_a_container_has_what_it_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CGROUP_LIMITS", (limit,))
    whole = machine.memory_bytes()
    assert whole > 1 << 28
    for said, found in (("max\n", whole), ("123456789\n", 123456789), (f"{whole * 2}\n", whole)):
        limit.write_text(said)
        assert machine.memory_bytes() == found


def test_an_error_for_want_of_files_says_how_many_there_may_be_and_what_to_do() -> None:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = machine.exhausted(OSError(errno.EMFILE, "Too many open files"))
    assert told == f"too many open files: this process may have {most}, `ulimit -n` raises that"
    assert machine.exhausted(OSError(errno.ENOENT, "no such file")) is None
