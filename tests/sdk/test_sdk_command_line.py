"""Messages call the command as the reader's shell will find it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weft.command_line import command


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an environment of its own below it, whose commands are not on the PATH."""
    bin_ = tmp_path / ".venv" / "bin"
    bin_.mkdir(parents=True)
    for name in ("python", "weft"):
        (bin_ / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(bin_ / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_on_the_path_it_is_its_name(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(environment / ".venv" / "bin"))
    assert command("jobs") == "weft jobs"
    assert command() == "weft"


def test_elsewhere_it_is_the_one_beside_the_interpreter(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("jobs") == ".venv/bin/weft jobs"
    (environment / "below").mkdir()
    monkeypatch.chdir(environment / "below")
    assert command("jobs") == f"{environment}/.venv/bin/weft jobs"


def test_where_there_is_none_it_is_its_name(environment: Path) -> None:
    (environment / ".venv" / "bin" / "weft").unlink()
    assert command("jobs") == "weft jobs"
