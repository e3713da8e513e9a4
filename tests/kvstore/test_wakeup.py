"""What wakes a thread in a poller."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from weft_kvstore.process import Wakeup


def is_readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup.fileno()], [], [], 0)[0])


def test_it_is_readable_from_a_wake_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    assert not is_readable(wakeup)
    for _ in range(100_000):
        wakeup.wake()
    assert is_readable(wakeup)
    wakeup.clear()
    assert not is_readable(wakeup)


def test_its_descriptor_is_closed_with_it_and_not_before() -> None:
    """So no thread that may still wake it finds another file's descriptor in its place."""
    wakeup = Wakeup()
    fd = wakeup.fileno()
    os.fstat(fd)
    del wakeup
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_one_that_is_left_ends_with_its_program_without_a_word() -> None:
    """Here the module of `Wakeup` has lost its names by then, as it has where a store froze the collector."""
    lines = (
        "import gc",
        "from weft_kvstore import errors",
        "from weft_kvstore.process import Wakeup",
        "errors.kept = Wakeup()",
        "gc.freeze()",
    )
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
