"""Shared memory: sealed, checked, mapped, and the client's arena of it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.same_host.layout import NO_PLACE, Layout, SharedLayout, SpareSpace

# --- What is wrong with memory that two processes are to share --------------------------------------------------------


class ArenaError(StoreError):
    """An arena cannot be made, is not accepted, or has no such bytes. Payloads can always travel as bytes instead."""


# --- How much memory a process may still take: of the machine, and of its control group -------------------------------


def free_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can be had without ending a process; None where the system does not say.

    A control group's limit counts shared memory of whoever touches it first, and says no by killing.
    """
    found = [*_machine(proc), *_groups(proc, groups)]
    return max(min(found), 0) if found else None


def _machine(proc: Path) -> Iterator[int]:
    for line in _text(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield int(rest.split()[0]) * 1024


def _groups(proc: Path, groups: Path) -> Iterator[int]:
    """Of each group (version 2) from the process's own up to the root that is mounted."""
    own = [line[3:] for line in _text(proc / "self" / "cgroup").splitlines() if line.startswith("0::/")]
    place = Path(own[0].lstrip("/")) if own else Path()
    for one in (place, *place.parents):
        limit, used = _text(groups / one / "memory.max").strip(), _text(groups / one / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            yield int(limit) - int(used)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# --- Anonymous memory that cannot shrink: made, and demanded of another process ---------------------------------------
# Reading a mapping beyond its file's end kills the reader (SIGBUS). So a shard maps only what is sealed against
# shrinking, which is for ever, and only what the kernel keeps in ordinary memory: huge pages of a reserved pool may be
# given back under a seal, and then the pool may be empty.


MFD_NOEXEC_SEAL: Final = 0x8
"""memfd_create(2), Linux 6.3: systems may demand it (vm.memfd_noexec), older ones do not know it."""

NAME: Final = "weft-arena"
"""How /proc/PID/maps calls the mapping."""


F_SEAL_FUTURE_WRITE: Final = 0x10
"""fcntl(2), Linux 5.1: who maps it from now on may only read. The fcntl module has no word for it."""


def sealed_memory(nbytes: int) -> int:
    """A descriptor of `nbytes` bytes of memory, zero and sealed, which takes none before `reserve`. Raises
    ArenaError."""
    if nbytes <= 0:
        raise ArenaError(f"an arena of {nbytes} bytes")
    fd = None
    try:
        fd = _memfd()
        os.ftruncate(fd, nbytes)
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


# --- Shared memory as arrays ------------------------------------------------------------------------------------------


MADV_POPULATE_WRITE: Final = 23
"""madvise(2), Linux 5.14: maps all pages now, writable, without changing them. The mmap module has no word for it."""

POPULATED_AT_ONCE: Final = 1 << 21
"""Bytes. Whoever maps or unmaps anything in this process waits meanwhile, NumPy for any larger array: 0.5 ms."""


class Mapping:
    """All of a descriptor's memory, readable and writable by this process and whoever else has mapped it.

    The mapping ends when this object was released, or is gone, *and* so is the last array in it: an array never points
    to what is no more. The descriptor may be closed at once. Raises ArenaError if it cannot be mapped.

    What another process can write may change between two looks: numbers can be computed with as they are; what is
    checked before use (ids, lengths) must be copied first, and the copy checked.
    """

    def __init__(self, fd: int, nbytes: int, *, read_only: bool = False) -> None:
        self.nbytes = nbytes
        protection = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        try:
            self._map: mmap.mmap | None = mmap.mmap(fd, nbytes, prot=protection)
        except (OSError, ValueError) as error:
            raise ArenaError(f"an arena of {nbytes} bytes cannot be mapped: {error}") from error
        # Arrays hold the map through this one. Closing it under them raises BufferError, so it is left to the last.
        self._bytes: Array | None = np.frombuffer(self._map, np.uint8)
        self._address: int = self._bytes.ctypes.data

    def array(self, offset: int, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """The array at `offset`, C-contiguous. Raises ArenaError for bytes outside, a misaligned offset, or once
        released."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ArenaError(f"dtype {kind}: elements that are references cannot be shared")
        if min(shape, default=0) < 0:
            raise ArenaError(f"shape {tuple(shape)}: a dimension is below 0")
        if kind.alignment and offset % kind.alignment:
            raise ArenaError(f"offset {offset} is not aligned for {kind}")
        return self.bytes_at(offset, prod(shape) * kind.itemsize).view(kind).reshape(shape)

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """`nbytes` bytes from `offset` on, uint8, one dimension. Raises ArenaError as `array` does."""
        if self._bytes is None:
            raise ArenaError("the arena was released")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ArenaError(f"bytes {offset} to {offset + nbytes} of an arena that has {self.nbytes}")
        return self._bytes[offset : offset + nbytes]

    def populate(self, start: int, stop: int) -> None:
        """Maps the pages of these bytes, so that no first touch falls into a step. Changes no byte; other threads run
        meanwhile."""
        held = self._bytes
        if held is None:
            return
        start = start // mmap.PAGESIZE * mmap.PAGESIZE
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for at in range(start, stop, POPULATED_AT_ONCE):
            end = min(at + POPULATED_AT_ONCE, stop)
            if madvise(self._address + at, end - at, MADV_POPULATE_WRITE):
                # An older kernel. Reading maps the pages too; writing could undo what the other process has just
                # written.
                held[at : end : mmap.PAGESIZE].max()

    def populate_behind(self, start: int, stop: int) -> None:
        """`populate` on a thread of its own, which ends with it: 0.2 ms a MiB is too long for a thread of sockets."""
        with contextlib.suppress(RuntimeError):  # No thread can be had: pages are mapped as they are touched.
            threading.Thread(target=self.populate, args=(start, stop), name="weft-populate", daemon=True).start()

    def release(self) -> None:
        """No array is given out any more; the memory is unmapped when the last one is gone. Idempotent."""
        self._bytes = self._map = None


# --- The memory that a client process shares with the shards of its host ----------------------------------------------


MOST_OF_FREE_MEMORY = 0.5
"""Part of the memory that is free which one arena may take: what a process cannot have ends it without a word."""


class Arena:
    """Sealed memory of a layout's size, mapped. One for a client process: a key's array is in one piece even where its
    slices belong to several shards, so all of them map the same memory.

    Nothing of it has a name in any file system; it is gone with the last process that has it. Its arrays stay good
    after `close`. It takes no memory before that is reserved. Raises ArenaError where there can be none: payloads then
    travel as bytes.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._fd: int | None = sealed_memory(layout.nbytes)
        try:
            self.mapping = Mapping(self._fd, layout.nbytes)
        except ArenaError:
            self._close_fd()
            raise

    def reserve(self, start: int, stop: int, *, populate: bool = True) -> None:
        """Takes the memory of these bytes. `populate` maps its pages too, on a thread of their own. Raises
        ArenaError."""
        free = free_memory()
        if free is not None and stop - start > MOST_OF_FREE_MEMORY * free:
            raise ArenaError(f"{stop - start} bytes of an arena, where {free} bytes of memory are free")
        reserve(self.fd, start, stop - start)
        if populate:
            self.mapping.populate_behind(start, stop)

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def fd(self) -> int:
        """The descriptor, to be given to a shard. Raises ArenaError once closed."""
        if self._fd is None:
            raise ArenaError("the arena was closed")
        return self._fd

    def close(self) -> None:
        """Offers it to nobody any more. Idempotent."""
        self._close_fd()
        self.mapping.release()

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self._close_fd()


# --- The arena of a client, and the arrays in it that a user fills and reads ------------------------------------------


class ClientMemory:
    """One arena, made when a shard of this host is found or an array in it is asked for. It takes memory for each
    shard's stage and window when it is first offered, and for an array when that is first asked for. Without a layout,
    there is none, and arrays are the process's own.

    `gradients` and `values`, by key's place, are the arrays in it that were given out. May be used from several
    threads: memory, which takes long, is taken under locks of its own, so whoever asks for it holds up neither the
    thread that has the sockets nor those who ask for what is there.
    """

    def __init__(self, keys: Sequence[KeyDescription], layout: SharedLayout | None) -> None:
        self.stages = [] if layout is None else [SpareSpace(room) for room in layout.stages]
        """Of each shard, for its link alone."""
        self.gradients: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        self._keys = keys
        self._layout = layout
        self._arrays: dict[tuple[int, bool], Array] = {}
        """All that were given out, by key's place and whether for a gradient: in the arena, or the process's own."""
        self._arena: Arena | None = None
        self._failed: ArenaError | None = None
        self._spare = False
        self._offering = threading.Lock()
        """Held while memory for stages and windows is taken."""
        self._reserving = threading.Lock()
        """Held while memory for arrays is taken."""
        self._lock = threading.Lock()
        """Taken under either of the others, never before."""

    def gradient(self, place: int) -> Array:
        """Where a user writes a key's gradient: always the same array, zeros at first."""
        return self._array(place, gradient=True)

    def value(self, place: int) -> Array:
        """Where a user reads a key's value: always the same array."""
        return self._array(place, gradient=False)

    @property
    def is_taken(self) -> bool:
        """Whether there is memory for stages and windows: `offered` returns at once."""
        return self._spare

    def take(self, done: Callable[[], None]) -> None:
        """Takes that memory, on a thread of its own, and calls `done` there: 0.3 ms a MiB, and up to 96 MiB for each
        shard, is too long for a thread of sockets. `is_taken` says whether there was any."""

        def take() -> None:
            try:
                with contextlib.suppress(ArenaError):
                    self.offered()
            finally:
                done()

        try:
            threading.Thread(target=take, name="weft-arena", daemon=True).start()
        except RuntimeError:  # No thread can be had.
            take()

    def offered(self) -> Arena:
        """The arena, to be given to a shard; its memory is taken where it was not. Raises ArenaError where there can be
        none."""
        with self._offering:
            with self._lock:
                arena = self._made()
            if not self._spare:
                spare = arena.layout.spare
                arena.reserve(spare.start, spare.stop)
                self._spare = True
            return arena

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """Bytes of an arena that was offered. Raises ArenaError for bytes that it has not."""
        if self._arena is None:
            raise ArenaError("no arena was offered")
        return self._arena.mapping.bytes_at(offset, nbytes)

    def close(self) -> None:
        """Gives nothing out any more; its arrays stay good. Waits for memory that is being taken. Idempotent."""
        with self._offering, self._reserving, self._lock:
            self._layout = None
            self.gradients, self.values = {}, {}
            if self._arena is not None:
                self._arena.close()

    def _made(self) -> Arena:
        if self._failed is not None:
            raise self._failed
        if self._layout is None:
            raise ArenaError("there is no arena")
        if self._arena is None:
            try:
                self._arena = Arena(self._layout)
            except ArenaError as error:
                self._failed = error
                raise
        return self._arena

    def _array(self, place: int, *, gradient: bool) -> Array:
        found = self._arrays.get((place, gradient))
        if found is not None:
            return found
        with self._reserving:
            with self._lock:
                found = self._arrays.get((place, gradient))  # Another thread may have asked for it meanwhile.
                if found is not None:
                    return found
                offset = self._offset(place, gradient=gradient)
                arena = None
                if offset is not None:
                    with contextlib.suppress(ArenaError):
                        arena = self._made()
            key = self._keys[place]
            placed = None if arena is None or offset is None else _placed(arena, offset, key)
            made = _own(key) if placed is None else placed
            with self._lock:
                self._arrays[place, gradient] = made
                if placed is not None:
                    (self.gradients if gradient else self.values)[place] = placed
            return made

    def _offset(self, place: int, *, gradient: bool) -> int | None:
        """Where its array is in the arena; None where it has to be the process's own."""
        if self._layout is None:
            return None
        offset = int((self._layout.gradients if gradient else self._layout.values)[place])
        return None if offset == NO_PLACE else offset


def _own(key: KeyDescription) -> Array:
    """A key's array of the process's own: a view of one that nobody else has. NumPy resizes no view to other bytes, so
    whoever has it cannot take away the memory that the store may be reading or writing."""
    return np.zeros(key.shape, key.dtype)[...]


def _placed(arena: Arena, offset: int, key: KeyDescription) -> Array | None:
    """A key's array in the arena, with memory; None where there is none to be had."""
    nbytes = prod(key.shape) * np.dtype(key.dtype).itemsize
    try:
        arena.reserve(offset, offset + nbytes, populate=False)
        arena.mapping.populate(offset, offset + nbytes)
        return arena.mapping.array(offset, key.shape, key.dtype)
    except ArenaError:
        return None


# --- The memory that a shard lends to the clients of its host ---------------------------------------------------------


class LentMemory:
    """Memory that this process writes, and that whoever gets `fd` may only read. All of it is taken when it is made,
    and counts in what the process may take: the kernel counts no shared memory there. Its arrays stay good after
    `close`. Raises ArenaError where there can be none: values are copied then."""

    def __init__(self, nbytes: int) -> None:
        free = free_memory()
        if nbytes <= 0 or (free is not None and nbytes > MOST_OF_FREE_MEMORY * free):
            raise ArenaError(f"{nbytes} bytes to lend, where {free} bytes of memory are free")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft != resource.RLIM_INFINITY and nbytes > MOST_OF_FREE_MEMORY * soft:
            raise ArenaError(f"{nbytes} bytes to lend, where this process may take {soft}")
        self.nbytes = nbytes
        self.fd = -1
        self._counted = 0
        """Bytes that the process may take less meanwhile."""
        try:
            self.fd = _memfd()
            os.ftruncate(self.fd, nbytes)
            reserve(self.fd, 0, nbytes)
            self.mapping = Mapping(self.fd, nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE)
            if soft != resource.RLIM_INFINITY:
                resource.setrlimit(resource.RLIMIT_DATA, (soft - nbytes, hard))
                self._counted = nbytes
        except (OSError, OverflowError, AttributeError, ArenaError) as error:
            self.close()
            raise ArenaError(f"no memory of {nbytes} bytes to lend: {error}") from error

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """As `Mapping.bytes_at`."""
        return self.mapping.bytes_at(offset, nbytes)

    def close(self) -> None:
        """Lends it to nobody any more. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        os.close(fd)
        if self._counted:
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (min(soft + self._counted, hard), hard))

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()
