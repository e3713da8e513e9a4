"""The count of the store's frames: both ends are counted, only while a call is measured, and a call takes few."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import redirect_stdout

import pytest

import frames

MOST_FRAMES = 200
"""Of both ends in a call, of 140 where no thread waits for the interpreter."""

MOST_FILES = 20


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
    ends = [(call, side) for call in ("pushpull", "push, then pull") for side in ("client", "shard")]
    assert [one for one in counted if one[1] != "both"] == ends
    assert all(number > 5 for one in ends for number in counted[one])


@pytest.mark.parametrize("call", ["pushpull", "push, then pull"])
def test_a_call_of_a_small_key_passes_few_files(call: str, counted: dict[tuple[str, str], list[int]]) -> None:
    frames_, _, files = counted[call, "both"]
    assert files <= MOST_FILES
    assert frames_ <= MOST_FRAMES
