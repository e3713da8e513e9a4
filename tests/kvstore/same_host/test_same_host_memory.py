"""Shared memory: reserved, sealed, mapped by others to be read, laid out for them, and gone when nobody has it."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from same_host_children import arena_maps, open_files
from store_cluster import key_of, store_of
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.same_host import memory as arena_module
from weft_kvstore.same_host.client_arrays import ClientMemory
from weft_kvstore.same_host.memory import (
    ALIGNMENT,
    ArenaError,
    SharedMemory,
    SpareSpace,
    map_shared,
    shard_memory,
)
from weft_kvstore.sharding import routing_of

PAGE = mmap.PAGESIZE


def test_memory_is_sealed_taken_when_it_is_reserved_and_has_no_name_in_a_file_system() -> None:
    memory = SharedMemory(100, PAGE)
    fd = memory.fd
    assert memory.nbytes == 2 * PAGE
    for nbytes in (0, PAGE, 3 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, nbytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert (os.fstat(fd).st_nlink, os.fstat(fd).st_size) == (0, 2 * PAGE)
    assert os.fstat(fd).st_blocks == 0, "it takes none"
    memory.reserve(0, PAGE)
    assert os.fstat(fd).st_blocks * 512 == PAGE
    assert not os.get_inheritable(fd)


def test_what_a_process_shares_is_seen_by_others_and_written_by_nobody_else() -> None:
    before = arena_maps(), open_files()
    memory = SharedMemory(PAGE, PAGE)
    with pytest.raises(PermissionError):
        mmap.mmap(memory.fd, memory.nbytes)
    with pytest.raises(PermissionError):
        os.write(memory.fd, b"x")
    seen = map_shared(memory.fd)[PAGE : PAGE + 4]
    own = memory.array(PAGE, (4,), np.uint8)
    memory.close()
    memory.close()
    own[...] = 7
    assert seen.tolist() == [7] * 4, "arrays outlive it"
    with pytest.raises(ValueError, match="read-only"):
        seen[...] = 1
    del seen, own
    assert (arena_maps(), open_files()) == before


def test_memory_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    before = arena_maps(), open_files()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ArenaError, match=r"no memory of 4096 bytes to share: .*No space"):
            SharedMemory(PAGE, 0).reserve(0, PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(arena_module, "SEALS", 1 << 30)
        with pytest.raises(ArenaError, match="no memory of 8192 bytes to share"):
            SharedMemory(PAGE, 0)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ArenaError, match="memfd_create"):
        SharedMemory(PAGE, 0)
    gc.collect()
    assert (arena_maps(), open_files()) == before


def test_a_kernel_without_the_newest_seal_still_gives_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.memfd_create

    def old(name: str, flags: int) -> int:
        if flags & 0x8:
            raise OSError(22, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", old)
    assert SharedMemory(PAGE, 0).fd >= 0


def test_memory_that_could_harm_whoever_maps_it_is_refused(tmp_path: Path) -> None:
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    other_seal = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    pool = os.memfd_create("x", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    shm = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE)
    read, write = os.pipe()
    fds = (unsealed, other_seal, pool, file, shm, read, write)
    try:
        for fd in (unsealed, other_seal, pool, file, shm):
            os.ftruncate(fd, 2 << 20)
        fcntl.fcntl(other_seal, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        fcntl.fcntl(pool, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        cases = {
            unsealed: "not sealed against shrinking",
            other_seal: "not sealed against shrinking",
            pool: "not plain memory",
            file: "not memory that can be sealed",
            shm: "not sealed against shrinking",
            read: "not memory that can be sealed",
        }
        for fd, reason in cases.items():
            with pytest.raises(ArenaError, match=reason):
                map_shared(fd)
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("nbytes", [0, 2 * PAGE - 1])
def test_what_is_no_whole_pages_is_refused(nbytes: int) -> None:
    fd = os.memfd_create("weft-arena", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(ArenaError, match=f"the arena has {nbytes} bytes, which are not whole pages"):
        map_shared(fd)
    os.close(fd)


def test_many_arenas_leave_nothing() -> None:
    before = arena_maps(), open_files()
    kept = []
    for number in range(200):
        memory = SharedMemory(10_000, 5)
        kept.append(memory.array(0, (10,), "float64")[number % 10 :])
        if number % 2:
            memory.close()
        del memory
        if number >= 3:
            kept.pop(0)
    assert arena_maps() == before[0] + 3
    kept.clear()
    assert (arena_maps(), open_files()) == before


def no_memory(*_: int) -> None:
    raise OSError(errno.ENOMEM, "no memory")


def test_what_a_shard_shares_counts_in_what_the_process_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(10 * PAGE, 20 * PAGE)]
    monkeypatch.setattr(arena_module.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(arena_module.resource, "setrlimit", lambda _, both: limits.append(both))
    with pytest.raises(ArenaError, match=f"{6 * PAGE} bytes to share, where this process may take"):
        shard_memory(6 * PAGE)
    memory = shard_memory(4 * PAGE)
    assert limits[1:] == [(6 * PAGE, 20 * PAGE)]
    assert os.fstat(memory.fd).st_blocks * 512 == 4 * PAGE
    memory.close()
    memory.close()
    assert limits[2:] == [(10 * PAGE, 20 * PAGE)]


# --- Where the bytes of a frame are -----------------------------------------------------------------------------------


def bytes_at(memory: SharedMemory, extents: list[tuple[int, int]]) -> bytes:
    seen = map_shared(memory.fd)
    return b"".join([seen[offset : offset + nbytes].tobytes() for offset, nbytes in extents])


def test_arrays_are_named_where_they_are_and_all_else_is_copied_to_the_stage() -> None:
    memory = SharedMemory(2 * PAGE, PAGE)
    first, second = memory.array(0, (16,), "float32"), memory.array(64, (16,), "float32")
    first[...], second[...] = 1, 2
    laid = memory.put([[first, second[:4]], [b"other"], [second[8:], memoryview(b"more")]])
    assert laid is not None
    extents, in_place = laid
    assert in_place == [True, False, True], "of the last one a part is read where it lies"
    assert extents[0] == (0, 80), "arrays that touch are one part"
    assert extents[2] == (96, 32)
    assert (
        bytes_at(memory, extents) == first.tobytes() + second[:4].tobytes() + b"other" + second[8:].tobytes() + b"more"
    )
    assert memory.put([[bytes(PAGE)]]) is None, "a part of the stage is taken"
    memory.free(extents)
    assert memory.put([[bytes(PAGE)]]) is not None
    memory.free([(0, 80)])


def test_where_the_stage_has_no_memory_nothing_is_laid(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory(0, PAGE)
    monkeypatch.setattr(os, "posix_fallocate", no_memory)
    assert memory.put([[b"x"]]) is None
    monkeypatch.undo()
    assert memory.put([[bytes(PAGE)]]) is not None, "nothing of it is taken"


def test_after_the_close_of_the_memory_frames_travel_as_bytes() -> None:
    memory = SharedMemory(1 << 16, 1 << 16)
    own = memory.array(0, (1 << 14,), np.uint8)
    assert memory.put([[np.ones(99, np.uint8)], [own]]) is not None, "staging has room"
    memory.close()
    assert memory.put([[np.ones(99, np.uint8)]]) is None
    assert memory.put([[own]]) is None, "nobody can map it any more"


def test_a_frame_of_too_many_parts_travels_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "MAX_EXTENTS", 2)
    memory = SharedMemory(PAGE, PAGE)
    array = memory.array(0, (256,), np.uint8)
    assert memory.put([[array[:1], b"x", array[9:10]]]) is None
    assert memory.put([[bytes(PAGE)]]) is not None


@settings(max_examples=200)
@given(st.lists(st.one_of(st.integers(1, 700), st.tuples(st.just("give"), st.integers(0, 100))), max_size=60))
def test_ranges_are_apart_and_one_is_missing_only_where_no_gap_is_long_enough(
    events: list[int | tuple[str, int]],
) -> None:
    """The model is one flag for each cache line."""
    room = range(4096, 4096 + 32 * ALIGNMENT)
    space = SpareSpace(room.start, room.stop)
    lines = np.zeros(len(room) // ALIGNMENT, np.bool_)
    held: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event, int):
            needed = -(-event // ALIGNMENT)
            free = [at for at in range(len(lines) - needed + 1) if not lines[at : at + needed].any()]
            offset = space.allocate(event)
            assert offset == (room.start + free[0] * ALIGNMENT if free else None)
            if offset is not None:
                held.append((offset, needed))
                lines[free[0] : free[0] + needed] = True
        elif held:
            offset, needed = held.pop(event[1] % len(held))
            space.free(offset)
            at = (offset - room.start) // ALIGNMENT
            lines[at : at + needed] = False
    for offset, _ in held:
        space.free(offset)
    assert space.allocate(len(room)) == room.start


def test_a_range_cannot_come_back_twice() -> None:
    space = SpareSpace(0, 4096)
    assert space.allocate(10) == 0
    space.free(0)
    with pytest.raises(ValueError, match="nothing was taken at 0"):
        space.free(0)


# --- The arrays of a client -------------------------------------------------------------------------------------------


def memory_of(*keys: KeyDescription, shared: bool = True) -> ClientMemory:
    return ClientMemory(keys, routing_of(store_of(keys, slots=1, shards=2, slice_bytes=256)) if shared else None)


def test_a_gradient_is_always_the_same_array_of_the_arena_and_a_value_the_processes_own() -> None:
    memory = memory_of(key_of("a", (30, 5), 1), key_of("b", (), 1), key_of("c", (0, 4), 1), key_of("d", (16,), 1))
    assert memory.gradient(0) is memory.gradient(0)
    assert memory.value(1) is memory.value(1)
    assert memory.gradient(0).shape == memory.value(0).shape == (30, 5)
    assert memory.gradient(2).shape == (0, 4)
    assert memory.arena is not None
    memory.gradient(0)[...] = 1
    laid = memory.arena.put([[memory.gradient(0)], [memory.gradient(3)], [memory.gradient(1)], [memory.value(0)]])
    assert laid is not None
    assert laid[1] == [True, True, True, False]
    assert all(offset % ALIGNMENT == 0 for offset, _ in laid[0])
    memory.close()
    memory.close()
    assert np.all(memory.gradient(0) == 1)
    assert memory.gradient(2) is memory.gradient(2)


def test_without_an_arena_arrays_are_the_processes_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "weft.store")
    alone = memory_of(key_of("a", (4,), 1), shared=False)
    assert alone.gradient(0) is alone.gradient(0)
    assert alone.gradient(0).tolist() == [0, 0, 0, 0]
    monkeypatch.setattr(os, "posix_fallocate", no_memory)
    poor = memory_of(key_of("a", (4,), 1))
    assert poor.gradient(0) is poor.gradient(0)
    assert poor.arena is not None
    assert poor.arena.put([[poor.gradient(0)]]) is None
    assert caplog.records == []
    monkeypatch.delattr(os, "memfd_create")
    assert memory_of(key_of("a", (4,), 1)).arena is None
    assert caplog.records[0].message.startswith("payloads travel as bytes, also to shards of this host: no memory of")
