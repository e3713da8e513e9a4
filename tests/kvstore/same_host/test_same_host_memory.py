"""The shared memory itself: reserved, sealed, mapped, and gone when nobody has it."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from same_host_children import arena_maps, open_files, wait_until
from store_cluster import key_of, store_of
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.same_host import memory as arena_module
from weft_kvstore.same_host.layout import lay_out, shared_layout
from weft_kvstore.same_host.memory import (
    Arena,
    ArenaError,
    ClientMemory,
    LentMemory,
    Mapping,
    check_sealed,
    free_memory,
    reserve,
    sealed_memory,
)
from weft_kvstore.sharding import routing_of

PAGE = mmap.PAGESIZE


def arena_of(*lengths: int) -> Arena:
    return Arena(lay_out(lengths))


def test_memory_is_sealed_and_has_no_name_in_a_file_system() -> None:
    fd = sealed_memory(3 * PAGE)
    try:
        check_sealed(fd, 3 * PAGE, 3 * PAGE)
        for nbytes in (0, PAGE, 4 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, nbytes)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert os.fstat(fd).st_nlink == 0
        assert os.fstat(fd).st_blocks == 0, "it takes none"
        reserve(fd, PAGE, 2 * PAGE)
        assert os.fstat(fd).st_blocks * 512 == 2 * PAGE
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_memory_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    with pytest.raises(ArenaError, match="an arena of 0 bytes"):
        sealed_memory(0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    fd = sealed_memory(4096)
    with pytest.raises(ArenaError, match=r"no memory of 4096 bytes to share: .*No space"):
        reserve(fd, 0, 4096)
    os.close(fd)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ArenaError, match="memfd_create"):
        sealed_memory(4096)
    assert open_files() == before


def test_a_kernel_without_the_newest_seal_still_gives_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.memfd_create

    def old(name: str, flags: int) -> int:
        if flags & 0x8:
            raise OSError(22, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", old)
    fd = sealed_memory(PAGE)
    os.close(fd)


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
                check_sealed(fd, 2 << 20, 2 << 20)
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        (0, "0 bytes, where 1 to 16384 are expected"),
        (5 * PAGE, "20480 bytes, where 1 to 16384 are expected"),
        (2 * PAGE - 1, "8191 bytes, which are not whole pages"),
        (PAGE, "the arena has 8192 bytes, 4096 were offered"),
        (3 * PAGE, "the arena has 8192 bytes, 12288 were offered"),
    ],
)
def test_a_length_that_is_not_so_is_refused(offered: int, reason: str) -> None:
    fd = sealed_memory(2 * PAGE)
    try:
        with pytest.raises(ArenaError, match=reason):
            check_sealed(fd, offered, 4 * PAGE)
    finally:
        os.close(fd)


def test_memory_that_may_only_be_read_is_refused() -> None:
    fd = sealed_memory(PAGE)
    read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    try:
        with pytest.raises(ArenaError, match=r"cannot be mapped: .*Permission"):
            Mapping(read_only, PAGE)
    finally:
        os.close(fd)
        os.close(read_only)


@pytest.mark.parametrize(
    ("offset", "shape", "dtype", "reason"),
    [
        (-4, (1,), "float32", "bytes -4 to 0"),
        (PAGE, (1,), "uint8", f"bytes {PAGE} to {PAGE + 1} of an arena that has {PAGE}"),
        (0, (PAGE // 4, 2), "float32", f"bytes 0 to {2 * PAGE}"),
        (2**63, (1,), "uint8", "of an arena that has"),
        (0, (2**40, 2**40), "float64", "of an arena that has"),
        (0, (-1, -1), "uint8", "a dimension is below 0"),
        (2, (1,), "float32", "offset 2 is not aligned for float32"),
        (0, (1,), "object", "references"),
    ],
)
def test_what_lies_outside_is_refused(offset: int, shape: tuple[int, ...], dtype: str, reason: str) -> None:
    with arena_of(16) as arena:
        mapping = Mapping(arena.fd, PAGE)
        with pytest.raises(ArenaError, match=reason):
            mapping.array(offset, shape, dtype)


def test_an_array_may_be_empty_and_may_be_all() -> None:
    with arena_of(16) as arena:
        assert arena.mapping.array(arena.nbytes, (0, 3), "float32").shape == (0, 3)
        assert arena.mapping.array(0, (arena.nbytes // 8,), "int64").nbytes == arena.nbytes
        assert not arena.mapping.array(0, (arena.nbytes,), "uint8").any()


def test_an_array_outlives_its_arena_and_the_memory_goes_with_it() -> None:
    before = arena_maps(), open_files()
    arena = arena_of(4096)
    array = arena.mapping.array(0, (1024,), "float32")
    part = array[10:20].reshape(2, 5)
    assert arena_maps() == before[0] + 1
    arena.close()
    arena.close()
    with pytest.raises(ArenaError, match="released"):
        arena.mapping.array(0, (1,), "uint8")
    with pytest.raises(ArenaError, match="closed"):
        _ = arena.fd
    assert arena.mapping._bytes is None
    del array
    part += 1
    assert part.sum() == 10
    assert arena_maps() == before[0] + 1
    del part
    assert (arena_maps(), open_files()) == before


def test_many_arenas_leave_nothing() -> None:
    before = arena_maps(), open_files()
    kept = []
    for number in range(200):
        arena = arena_of(10_000, 5)
        kept.append(arena.mapping.array(0, (10,), "float64")[number % 10 :])
        if number % 2:
            arena.close()
        del arena
        if number >= 3:
            kept.pop(0)
    assert arena_maps() == before[0] + 3
    kept.clear()
    assert (arena_maps(), open_files()) == before


def resident_bytes(array: np.ndarray) -> int:
    """Of the mapping that begins with this array, what the process's page tables have."""
    begin, found = f"{array.ctypes.data:x}-", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        found = line.startswith(begin) or (found and "-" not in line.split(" ", 1)[0])
        if found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"nothing is mapped at {begin}")


@pytest.mark.parametrize("old_kernel", [False, True])
def test_pages_are_mapped_ahead_and_no_byte_is_changed(old_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_kvstore.same_host.memory.POPULATED_AT_ONCE", 7 * PAGE)
    if old_kernel:
        monkeypatch.setattr("weft_kvstore.same_host.memory.MADV_POPULATE_WRITE", 12345)
    with arena_of(300 * PAGE) as arena:
        array = arena.mapping.array(0, (arena.nbytes // 8,), "int64")
        array[::100] = np.arange(len(array[::100]))
        second = Mapping(arena.fd, arena.nbytes)
        again = second.array(0, array.shape, "int64")
        assert resident_bytes(again) == 0
        second.populate_behind(0, second.nbytes)
        wait_until(lambda: resident_bytes(again) == arena.nbytes)
        assert np.array_equal(again, array)
        second.release()
        second.populate(0, second.nbytes)


def test_more_than_half_of_the_free_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control group's limit would end the process instead of saying no."""
    with arena_of(40 * PAGE) as arena:
        monkeypatch.setattr(arena_module, "free_memory", lambda: 15 * PAGE)
        with pytest.raises(ArenaError, match=f"{8 * PAGE} bytes of an arena, where {15 * PAGE} bytes of memory are"):
            arena.reserve(0, 8 * PAGE)
        monkeypatch.setattr(arena_module, "free_memory", lambda: 16 * PAGE)
        arena.reserve(0, 8 * PAGE)


def test_an_arena_takes_no_memory_before_that_is_reserved() -> None:
    with arena_of(300 * PAGE) as arena:
        assert os.fstat(arena.fd).st_blocks == 0
        arena.reserve(PAGE + 1, 3 * PAGE, populate=False)
        assert os.fstat(arena.fd).st_blocks * 512 == 2 * PAGE
        assert os.fstat(arena.fd).st_size == arena.nbytes


def test_free_memory_is_the_least_of_the_machine_and_all_groups(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    5000 kB\n")
    assert free_memory(tmp_path, tmp_path / "none") == 5000 * 1024
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("1:cpu:/x\n0::/job/part\n")
    for name, limit, used in (("", "max", "10"), ("job", "4000000", "1000000"), ("job/part", "3900000", "10")):
        place = tmp_path / "groups" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(limit + "\n")
        (place / "memory.current").write_text(used + "\n")
    assert free_memory(tmp_path, tmp_path / "groups") == 3_000_000
    (tmp_path / "groups" / "job" / "memory.current").write_text("5000000\n")
    assert free_memory(tmp_path, tmp_path / "groups") == 0
    free = free_memory()
    assert free is not None
    assert free > 0


def memory_of(*keys: KeyDescription, shared: bool = True) -> ClientMemory:
    layout = shared_layout(routing_of(store_of(keys, slots=1, shards=2, slice_bytes=256)))
    return ClientMemory(keys, layout if shared else None)


def test_a_gradient_and_a_value_are_always_the_same_arrays_of_the_arena() -> None:
    memory = memory_of(key_of("a", (30, 5), 1), key_of("b", (), 1), key_of("c", (0, 4), 1))
    assert memory.gradient(0) is memory.gradient(0)
    assert memory.value(1) is memory.value(1)
    assert memory.gradient(0) is not memory.value(0)
    assert memory.gradient(0).shape == (30, 5)
    assert memory.value(1).shape == ()
    assert memory.gradient(2).shape == (0, 4)
    assert list(memory.gradients) == [0], "an empty key has no place"
    assert list(memory.values) == [1, 0]
    offered = memory.offered()
    assert np.shares_memory(offered.mapping.bytes_at(0, offered.nbytes), memory.gradient(0))
    memory.close()


def test_without_an_arena_arrays_are_the_processes_own(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = memory_of(key_of("a", (4,), 1), shared=False)
    assert alone.gradient(0) is alone.gradient(0)
    assert alone.gradient(0).tolist() == [0, 0, 0, 0]
    monkeypatch.setattr(arena_module, "free_memory", lambda: 0)
    poor = memory_of(key_of("a", (4,), 1))
    assert poor.value(0) is poor.value(0)
    assert (poor.values, poor.gradients, alone.gradients) == ({}, {}, {})
    with pytest.raises(ArenaError, match="0 bytes of memory are free"):
        poor.offered()
    poor.close()


def test_an_arenas_pages_are_mapped_where_they_are_reserved() -> None:
    with Arena(lay_out([300 * PAGE])) as arena:
        array = arena.mapping.array(0, (arena.nbytes,), "uint8")
        arena.reserve(0, 200 * PAGE)
        wait_until(lambda: resident_bytes(array) == 200 * PAGE)


def test_without_a_thread_pages_are_mapped_as_they_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none)
    with Arena(lay_out([300 * PAGE])) as arena:
        array = arena.mapping.array(0, (arena.nbytes,), "uint8")
        arena.reserve(0, arena.nbytes)
        assert resident_bytes(array) == 0
        assert not array.any()


def test_what_a_shard_lends_is_seen_by_others_and_written_by_nobody_else() -> None:
    before = arena_maps(), open_files()
    lent = LentMemory(2 * PAGE)
    check_sealed(lent.fd, 2 * PAGE, 2 * PAGE)
    with pytest.raises(PermissionError):
        mmap.mmap(lent.fd, 2 * PAGE)
    with pytest.raises(PermissionError):
        os.write(lent.fd, b"x")
    seen = Mapping(lent.fd, 2 * PAGE, read_only=True).bytes_at(PAGE, 4)
    own = lent.bytes_at(PAGE, 4)
    lent.close()
    lent.close()
    own[...] = 7
    assert seen.tolist() == [7] * 4
    with pytest.raises(ValueError, match="read-only"):
        seen[...] = 1
    del lent, seen, own
    gc.collect()
    assert (arena_maps(), open_files()) == before


def test_memory_to_lend_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    before = arena_maps(), open_files()
    with pytest.raises(ArenaError, match="0 bytes to lend"):
        LentMemory(0)
    monkeypatch.setattr(arena_module, "free_memory", lambda: 3 * PAGE)
    with pytest.raises(ArenaError, match="free"):
        LentMemory(2 * PAGE)
    monkeypatch.undo()
    monkeypatch.setattr(arena_module, "F_SEAL_FUTURE_WRITE", 1 << 30)
    with pytest.raises(ArenaError, match="no memory of 4096 bytes to lend"):
        LentMemory(PAGE)
    assert (arena_maps(), open_files()) == before


def test_what_is_lent_counts_in_what_the_process_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(10 * PAGE, 20 * PAGE)]
    monkeypatch.setattr(arena_module.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(arena_module.resource, "setrlimit", lambda _, both: limits.append(both))
    with pytest.raises(ArenaError, match=f"{6 * PAGE} bytes to lend, where this process may take"):
        LentMemory(6 * PAGE)
    lent = LentMemory(4 * PAGE)
    assert limits[1:] == [(6 * PAGE, 20 * PAGE)]
    lent.close()
    lent.close()
    assert limits[2:] == [(10 * PAGE, 20 * PAGE)]


def test_what_nobody_has_any_more_is_lent_to_nobody() -> None:
    before = arena_maps(), open_files()
    LentMemory(PAGE)
    gc.collect()
    assert (arena_maps(), open_files()) == before
