"""The count of the store's frames: both ends are counted, and only while a call is measured."""

from __future__ import annotations

import sys
import threading

import pytest

import frames


def test_both_ends_of_a_call_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(frames, "WARM_UP", 3)
    monkeypatch.setattr(frames, "CALLS", 2)
    monkeypatch.setattr(sys, "argv", ["frames.py"])
    try:
        frames.main()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    rows = [line.rsplit(maxsplit=4) for line in capsys.readouterr().out.splitlines()[1:]]
    counted = [row for row in rows if row[1] in {"client", "shard"}]
    assert [row[0] for row in counted] == ["pushpull", "pushpull", "push, then pull", "push, then pull"]
    assert all(int(number) > 5 for row in counted for number in row[2:])
