"""The count of the store's frames: both ends are counted, only while a call is measured, and a call takes few."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import redirect_stdout

import pytest

import frames

MOST = {"pushpull": (200, 20), "push, then pull": (200, 20), "pushpull_rows": (260, 27)}
"""Frames and files of both ends: of 140 frames, and 196 of rows, where no thread waits for the interpreter."""


@pytest.fixture(scope="module")
def counted() -> dict[tuple[str, str], list[int]]:
    """By call and side: frames, functions and files."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(said):
        patched.setattr(frames, "WARM_UP", 3)
        patched.setattr(frames, "CALLS", 2)
        patched.setattr(sys, "argv", ["frames.py"])
        try:
            frames.main()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    rows = [line.rsplit(maxsplit=4) for line in said.getvalue().splitlines()[1:]]
    return {(call, side): [int(number) for number in numbers] for call, side, *numbers in rows}


def test_both_ends_of_a_call_are_counted(counted: dict[tuple[str, str], list[int]]) -> None:
    ends = [(call, side) for call in MOST for side in ("client", "shard")]
    assert [one for one in counted if one[1] != "both"] == ends
    assert all(number > 5 for one in ends for number in counted[one])


@pytest.mark.parametrize("call", MOST)
def test_a_call_of_a_small_key_passes_few_files(call: str, counted: dict[tuple[str, str], list[int]]) -> None:
    frames_, _, files = counted[call, "both"]
    most_frames, most_files = MOST[call]
    assert files <= most_files
    assert frames_ <= most_frames
