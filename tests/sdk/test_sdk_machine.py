"""What a machine has."""

from __future__ import annotations

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
