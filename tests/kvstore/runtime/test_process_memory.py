"""Memory that a process has freed goes back to the system when it is told to."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from weft_kvstore.runtime.process import return_memory


def resident_bytes() -> int:
    """Of this process, as Linux counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library gives memory back in its own way")
def test_what_was_freed_between_what_stays_goes_back() -> None:
    arrays = [np.ones(600, np.float32) for _ in range(60_000)]
    held = resident_bytes()
    kept = arrays[::500]
    del arrays
    return_memory()
    assert resident_bytes() < held - 100_000_000
    assert all(array.all() for array in kept)
