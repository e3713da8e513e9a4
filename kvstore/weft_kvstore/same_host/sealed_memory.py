"""Anonymous memory that cannot shrink: made, and demanded of another process.

Reading a mapping beyond its file's end kills the reader (SIGBUS). So a shard maps only what is sealed against
shrinking, which is for ever, and only what the kernel keeps in ordinary memory: huge pages of a reserved pool may be
given back under a seal, and then the pool may be empty.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from typing import Final

from weft_kvstore.same_host.errors import ArenaError

MFD_NOEXEC_SEAL: Final = 0x8
"""memfd_create(2), Linux 6.3: systems may demand it (vm.memfd_noexec), older ones do not know it."""

NAME: Final = "weft-arena"
"""How /proc/PID/maps calls the mapping."""


def sealed_memory(nbytes: int, *, reserved: bool = True) -> int:
    """A descriptor of `nbytes` bytes of memory, zero and sealed; `reserved`, unless that is left to `reserve`. Raises
    ArenaError."""
    if nbytes <= 0:
        raise ArenaError(f"an arena of {nbytes} bytes")
    fd = None
    try:
        fd = _memfd()
        os.ftruncate(fd, nbytes)
        if reserved:
            os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except (OSError, OverflowError, AttributeError) as error:
        if fd is not None:
            os.close(fd)
        raise ArenaError(f"no memory of {nbytes} bytes to share: {error}") from error
    return fd


def reserve(fd: int, start: int, nbytes: int) -> None:
    """Takes the memory of some of its bytes now: what cannot be had is said here; a page that is missing later would
    kill whoever writes to it. Raises ArenaError."""
    try:
        os.posix_fallocate(fd, start, nbytes)
    except OSError as error:
        raise ArenaError(f"no memory of {nbytes} bytes to share: {error}") from error


def check_sealed(fd: int, nbytes: int, most_bytes: int) -> None:
    """Raises ArenaError unless this is sealed memory of exactly `nbytes` bytes, at most `most_bytes`.

    The seal is asked first: a file of a foreign file system has none, and nothing else of it is touched, since an
    answer could take for ever.
    """
    if not 0 < nbytes <= most_bytes:
        raise ArenaError(f"an arena of {nbytes} bytes, where 1 to {most_bytes} are expected")
    if nbytes % mmap.PAGESIZE:
        raise ArenaError(f"an arena of {nbytes} bytes, which are not whole pages of {mmap.PAGESIZE}")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ArenaError(f"the arena is not memory that can be sealed: {error}") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ArenaError("the arena is not sealed against shrinking")
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode) or state.st_dev != _device():
        raise ArenaError("the arena is not plain memory of this kernel")
    if state.st_size != nbytes:
        raise ArenaError(f"the arena has {state.st_size} bytes, {nbytes} were offered")


def _memfd() -> int:
    try:
        return os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _device() -> int:
    """The device number of the kernel's own mount, on which all plain memfds lie and nothing else does."""
    fd = _memfd()
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
