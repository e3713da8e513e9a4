"""What a shard process sets for itself at its start."""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 1e-4
"""CPython hands the interpreter to a waiting thread after this long; at its default of 5 ms a small message waits."""

_MALLOPT: Final = {
    # parameter of mallopt(3): value
    -1: 512 << 20,  # M_TRIM_THRESHOLD: free memory that is kept for the next step
    -3: 32 << 20,  # M_MMAP_THRESHOLD: the most that glibc takes; smaller buffers keep their pages from step to step
}


def tune_process() -> None:
    """Sets the switch interval, and malloc's thresholds where the C library is glibc."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOPT.items():
            mallopt(parameter, value)
