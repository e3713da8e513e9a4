"""Memory that processes of one host share: a process's own, which others may map and only read, and theirs. Pure: no
sockets and no threads.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import stat
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.errors import StoreError
from weft_kvstore.wire.outbox import OutFrame, OutSegment


class ArenaError(StoreError):
    """Shared memory cannot be made, or is not accepted. Payloads can always travel as bytes instead."""


# --- Anonymous memory that cannot shrink and that others cannot write: made, and demanded of another process ----------
# Reading a mapping beyond its file's end kills the reader (SIGBUS). So a process maps only what is sealed against
# shrinking, which is for ever, and only what the kernel keeps in ordinary memory: huge pages of a reserved pool may be
# given back under a seal, and then the pool may be empty.


MFD_NOEXEC_SEAL: Final = 0x8
"""memfd_create(2), Linux 6.3: systems may demand it (vm.memfd_noexec), older ones do not know it."""

NAME: Final = "weft-arena"
"""How /proc/PID/maps calls the mapping."""

F_SEAL_FUTURE_WRITE: Final = 0x10
"""fcntl(2), Linux 5.1: who maps it from now on may only read. The fcntl module has no word for it."""

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | F_SEAL_FUTURE_WRITE


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


def map_shared(fd: int) -> Array:
    """Another process's memory (bytes) uint8, to be read. It stays mapped until the last array over it is gone; the
    descriptor may be closed at once.

    The other process may write it at any time. What is checked before use (ids, lengths) must be copied first, and the
    copy checked. Raises ArenaError for what is not sealed, or no plain memory. The seal is asked first: a file of a
    foreign file system has none, and nothing else of it is touched, since an answer could take for ever.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ArenaError(f"the arena is not memory that can be sealed: {error}") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ArenaError("the arena is not sealed against shrinking")
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode) or state.st_dev != _device():
        raise ArenaError("the arena is not plain memory of this kernel")
    if not state.st_size or state.st_size % mmap.PAGESIZE:
        raise ArenaError(f"the arena has {state.st_size} bytes, which are not whole pages of {mmap.PAGESIZE}")
    return _mapped(fd, state.st_size, mmap.PROT_READ)


def _mapped(fd: int, nbytes: int, protection: int) -> Array:
    try:
        return np.frombuffer(mmap.mmap(fd, nbytes, prot=protection), np.uint8)
    except (OSError, ValueError, OverflowError) as error:
        raise ArenaError(f"an arena of {nbytes} bytes cannot be mapped: {error}") from error


# --- The area of shared memory for payloads that do not lie there: rows, encoded slices, the caller's own arrays ------


ALIGNMENT: Final = 64
"""Bytes: a cache line, so that no two arrays share one, and enough for every dtype and vector instruction."""


class SpareSpace:
    """Gives out ranges of the offsets `start` to `stop`, the lowest that fits first.

    Against a ring: ranges come back in any order, and one slow peer must not hold up the others. The lowest first keeps
    a steady program in the same pages, which are in the cache and mapped.
    """

    def __init__(self, start: int, stop: int) -> None:
        self._taken = [(start, start), (stop, stop)]
        """In order, between two empty ranges."""

    def allocate(self, nbytes: int) -> int | None:
        """The offset of a range of at least this length, which is above 0; None if there is none."""
        length = -(-nbytes // ALIGNMENT) * ALIGNMENT
        for number, ((_, end), (start, _)) in enumerate(pairwise(self._taken), 1):
            if start - end >= length:
                self._taken.insert(number, (end, end + length))
                return end
        return None

    def free(self, offset: int) -> None:
        """A range comes back. Raises ValueError for an offset that none has."""
        number = bisect_left(self._taken, (offset + 1, 0)) - 1
        start, end = self._taken[number]
        if start != offset or start == end:
            raise ValueError(f"nothing was taken at {offset}")
        del self._taken[number]


# --- A process's own memory: arrays that stay where they are, and a staging area ------------------------------------


MOST_OF_LIMIT: Final = 0.5
"""Of the memory that the process may take, this part may be shared: beyond its limit it is killed without a message."""

STAGING_STEP: Final = 1 << 21
"""Bytes of the staging area that are reserved at once, at least: some 0.6 ms."""

MAX_EXTENTS: Final = 4096
"""Of a frame."""

Extent: TypeAlias = tuple[int, int]
"""Offset and number of bytes."""


class SharedMemory:
    """`nbytes` bytes of this process, which processes that have `fd` may map and only read: `arrays_bytes` for arrays,
    and behind them the staging area, of at most `staging_bytes`.

    It has no name in any file system and is gone with the last process that has it mapped. It takes no memory before
    `reserve`, which raises where the system has none: a page that is missing later would kill whoever writes it. At a
    container's memory limit `reserve` does not raise, and the kernel kills a process of the container: see
    `docs/same-host.md`. Its arrays stay good after `close`. Raises ArenaError where there can be none.
    """

    least_bytes = 16 << 10
    """A shorter payload travels as bytes: that costs no more."""

    def __init__(self, arrays_bytes: int, staging_bytes: int) -> None:
        self._staging_start = self._reserved = _pages(arrays_bytes + ALIGNMENT)  # Arrays never touch the staging area.
        self.nbytes = self._staging_start + _pages(staging_bytes)
        self._staging = SpareSpace(self._staging_start, self.nbytes)
        self.fd = -1
        self._counted = 0
        try:
            self.fd = _memfd()
            os.ftruncate(self.fd, self.nbytes)
            self._bytes = _mapped(self.fd, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        except (OSError, OverflowError, AttributeError, ArenaError) as error:
            self.close()
            raise ArenaError(f"no memory of {self.nbytes} bytes to share: {error}") from error
        self._address: int = self._bytes.ctypes.data

    def reserve(self, start: int, stop: int) -> None:
        """Takes the memory of these bytes. Raises ArenaError."""
        try:
            os.posix_fallocate(self.fd, start, stop - start)
        except OSError as error:
            raise ArenaError(f"no memory of {stop - start} bytes to share: {error}") from error

    def count(self, nbytes: int) -> None:
        """Counts so many bytes in what this process may take, until `close`: the kernel counts no shared memory there.
        Raises ArenaError where it may not take so many."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY:
            return
        if nbytes > MOST_OF_LIMIT * soft:
            raise ArenaError(f"{nbytes} bytes to share, where this process may take {soft}")
        resource.setrlimit(resource.RLIMIT_DATA, (soft - nbytes, hard))
        self._counted = nbytes

    def array(self, offset: int, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """The array at `offset`, C-contiguous."""
        kind = np.dtype(dtype)
        return self._bytes[offset : offset + prod(shape) * kind.itemsize].view(kind).reshape(shape)

    def put(self, sections: Sequence[Sequence[Buffer]]) -> tuple[list[Extent], list[bool]] | None:
        """Where the bytes of a frame are, section by section, and of which sections some lie in arrays that are
        here. The rest is copied to the staging area, until `free`. None where there is no room, and after `close`."""
        if self.fd < 0:
            return None
        found: list[tuple[int, Array]] = []
        in_place: list[bool] = []
        copied = 0
        for buffers in sections:
            lies_here = False
            for buffer in buffers:
                view = np.frombuffer(buffer, np.uint8)
                offset = view.__array_interface__["data"][0] - self._address
                if not 0 <= offset < self._staging_start:
                    offset = -1
                    copied += view.size
                lies_here = lies_here or offset >= 0
                found.append((offset, view))
            in_place.append(lies_here)
        at = self._take(copied) if copied else 0
        if at is None:
            return None
        extents: list[Extent] = []
        for own, view in found:
            offset = own
            if own < 0:
                self._bytes[at : at + view.size] = view
                offset, at = at, at + view.size
            if extents and sum(extents[-1]) == offset:
                extents[-1] = (extents[-1][0], extents[-1][1] + view.size)
            elif view.size:
                extents.append((offset, view.size))
        if len(extents) > MAX_EXTENTS:
            self.free(extents)
            return None
        return extents, in_place

    def free(self, extents: Sequence[Extent]) -> None:
        """What `put` has said is read no more."""
        staged = min((offset for offset, _ in extents if offset >= self._staging_start), default=None)
        if staged is not None:
            self._staging.free(staged)

    def close(self) -> None:
        """From now on it is given to nobody, and nothing is copied to it. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        self._bytes = np.zeros(0, np.uint8)
        if self._counted:
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (min(soft + self._counted, hard), hard))
            self._counted = 0

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()

    def _take(self, nbytes: int) -> int | None:
        offset = self._staging.allocate(nbytes)
        if offset is not None and offset + nbytes > self._reserved:
            stop = min(max(offset + nbytes, self._reserved + STAGING_STEP), self.nbytes)
            try:
                self.reserve(self._reserved, stop)
            except ArenaError:
                self._staging.free(offset)
                return None
            self._reserved = stop
        return offset


MAX_SHARD_STAGING_BYTES: Final = 32 << 20
"""Of a shard's staging area: what may be under way to all clients of its host."""


def shard_memory(nbytes: int) -> SharedMemory:
    """A shard's memory; that of its arrays is reserved at once. Raises ArenaError where there is none."""
    memory = SharedMemory(nbytes, MAX_SHARD_STAGING_BYTES)
    if nbytes:
        memory.count(nbytes)
        memory.reserve(0, nbytes)
    return memory


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


# --- Frames whose payload lies in a process's own memory, where a peer reads it ---------------------------------------


class SharedFrames:
    """The frames that one peer reads in this process's memory, until it says that it has read a frame, or begins a new
    connection. By a frame's number, `frames` has its extents, and those of its segments that lie in arrays there, not
    only in copies; `_unread` has such segments once their frame has arrived."""

    __slots__ = ("_unread", "frames", "memory")

    def __init__(self, memory: SharedMemory | None) -> None:
        self.memory = memory
        self.frames: dict[int, tuple[list[Extent], set[OutSegment[Any, Any]]]] = {}
        self._unread: dict[int, list[OutSegment[Any, Any]]] = {}

    def put(self, frame: OutFrame[Any, Any]) -> list[Extent]:
        """Where the bytes of a frame are, for the peer to read; nothing where they have to travel."""
        if self.memory is None or frame.nbytes < self.memory.least_bytes:
            return []
        sections = frame.sections()
        put = self.memory.put([buffers for _, buffers in sections])
        if put is None:
            return []
        extents, in_place = put
        arrays = {
            one for (segments, _), is_array in zip(sections, in_place, strict=True) if is_array for one in segments
        }
        self.frames[frame.number] = extents, arrays
        return extents

    def arrived(self, number: int, segments: list[OutSegment[Any, Any]]) -> list[OutSegment[Any, Any]]:
        """A frame has arrived: those of its segments that the peer need not have read, as they are copies."""
        if number not in self.frames:
            return segments
        _, arrays = self.frames[number]
        self._unread[number] = [one for one in segments if one in arrays]
        return [one for one in segments if one not in arrays]

    def release(self, number: int) -> list[OutSegment[Any, Any]]:
        """A frame is read no more. Those of its segments that have arrived and waited for that."""
        if number in self.frames and self.memory is not None:
            self.memory.free(self.frames.pop(number)[0])
        return self._unread.pop(number, [])

    def release_all(self) -> list[OutSegment[Any, Any]]:
        return [one for number in [*self.frames] for one in self.release(number)]

    def is_unread(self, owner: object) -> bool:
        """Whether segments of this owner have arrived and were not read."""
        return any(one.owner is owner for segments in self._unread.values() for one in segments)
