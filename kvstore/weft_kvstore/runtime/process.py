"""What a process with a store in it, shard or worker, sets for itself at its start."""

from __future__ import annotations

import ctypes
import gc
import logging
import platform
import sys

SWITCH_INTERVAL_S = 1e-4
"""CPython hands the interpreter to a waiting thread after this long. At its default of 5 ms, a small message waits
that long behind a computing thread."""

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3), from glibc's malloc.h."""

MMAP_THRESHOLD_BYTES = 32 << 20
"""The most that glibc takes. Arrays below it come from the heap, whose pages stay mapped from one step to the next
instead of being mapped and zeroed by the kernel each time."""

TRIM_THRESHOLD_BYTES = 512 << 20
"""Free memory at the heap's top that is kept for the next step."""

_log = logging.getLogger("weft.store")


def tune_process() -> None:
    """Sets the switch interval, and malloc's thresholds where the C library is glibc."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for name, parameter, value in (
        ("M_MMAP_THRESHOLD", M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        ("M_TRIM_THRESHOLD", M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    ):
        if mallopt(parameter, value) != 1:
            _log.warning("malloc does not take %s = %d", name, value)


def return_memory() -> None:
    """Gives free memory back to the system: what a job leaves is not the next one's.

    Threads have heaps of their own, each of which would keep as much as `TRIM_THRESHOLD_BYTES`. Takes some ten
    milliseconds; only where the C library is glibc.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
