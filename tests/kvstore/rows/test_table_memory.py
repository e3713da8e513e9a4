"""What tables take: growth without copies, and tables larger than the memory that they may have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft_kernels.rules.lookup import rules
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import GrowthDescription
from weft_kvstore.rows.growing_array import HUGE_PAGE_BYTES, GrowingArray, TablePlace
from weft_kvstore.rows.storage import RowStorage

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is told by Linux alone")


def resident_bytes(kind: str = "VmRSS") -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(kind))


@pytest.mark.parametrize("width", [None, 5])
def test_an_array_keeps_what_it_has_when_it_grows(width: int | None) -> None:
    array = GrowingArray(width, np.float32)
    shape = () if width is None else (width,)
    assert array.array.shape == (0, *shape)
    for rows in (3, 1000, HUGE_PAGE_BYTES // 4 + 1, 10, HUGE_PAGE_BYTES):
        before = len(array)
        array.grow(rows)
        assert array.array.shape == (max(rows, before), *shape)
        assert not array.array[before:].any()
        array.array[-1] = rows
    assert array.array[2].max() == 3
    assert array.array[999].max() == 1000


def test_who_reads_an_array_that_grows_keeps_what_they_read() -> None:
    array = GrowingArray(None, np.int64)
    array.grow(HUGE_PAGE_BYTES)
    array.array[5] = 7
    held = array.array
    array.grow(4 * HUGE_PAGE_BYTES)
    assert (array.array[5], held[5]) == (7, 7)
    array.array[5] = 8
    assert held[5] == 7


def test_addresses_that_are_not_to_be_had_are_no_memory() -> None:
    array = GrowingArray(None, np.int64)
    array.grow(HUGE_PAGE_BYTES)
    array.array[1] = 3
    with pytest.raises(MemoryError, match="cannot be reserved"):
        array.grow(1 << 58)
    assert (len(array), array.array[1]) == (HUGE_PAGE_BYTES, 3)


GROWN = """
import numpy as np, resource, sys
sys.path[:0] = {path!r}
from pathlib import Path
from weft_kvstore.description.records import GrowthDescription
from weft_kvstore.rows.storage import RowStorage

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

table = RowStorage(32, np.dtype(np.float32), {{}}, growth=GrowthDescription(), salt=1)
first = lambda ids: np.zeros((len(ids), 32), np.float32)
warm = np.arange(8192, dtype=np.uint64)
before = peak()
count, step = 600_000, 8192
for low in range(0, count, step):
    table.find_or_add(np.arange(low, low + step, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15), 0, first)
print((peak() - before) / (table.count * 128))
"""


@linux
def test_growth_takes_little_more_than_the_values_at_its_peak() -> None:
    """77 MB of values in a process of its own, whose peak is its own; the start of the process is left out."""
    script = GROWN.format(path=[path for path in sys.path if path])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert 1.0 < float(done.stdout) < 1.3


def rows_of(places: Array, width: int) -> Array:
    return (places[:, None] * 3 + np.arange(width)).astype(np.float32)


@linux
@pytest.mark.parametrize("grows", [False, True])
def test_a_table_larger_than_its_memory_stays_within_it(tmp_path: Path, *, grows: bool) -> None:
    """48 MiB of values and state in 8 MiB, with a margin for what is made on the way."""
    place, width, rows = TablePlace(tmp_path, 8 * MIB), 256, 48 * MIB // (2 * 256 * 4)
    start = {"momentum": 0.0}
    size: dict[str, Any] = {"growth": GrowthDescription(), "salt": 3} if grows else {"rows": rows}
    table = RowStorage(width, np.dtype(np.float32), start, place=place, **size)
    at_once = table.arrays.at_once
    assert at_once is not None
    dtype, before, most = np.uint64 if grows else np.int64, resident_bytes(), 0
    momentum = rules()["momentum"]
    order = np.random.default_rng(2).permutation(rows).astype(dtype)
    for low in range(0, rows, at_once):
        places = np.sort(order[low : low + at_once])
        numbers = table.find_or_add(places, 0, lambda places: rows_of(places, width))
        table.arrays.apply(momentum, numbers, np.ones((len(places), width), np.float32), step=1, hyper=momentum.hyper)
        most = max(most, resident_bytes())
    lr, checked = np.float32(momentum.hyper["lr"]), np.sort(order[::7])
    for low in range(0, len(checked), at_once):
        places = checked[low : low + at_once]
        values, lacks = table.read(None, places)
        assert lacks is None or not lacks.any()
        assert np.array_equal(values, rows_of(places, width) - lr)
        assert (table.read("momentum", places)[0] == 1).all()
        most = max(most, resident_bytes())
    assert 2 * len(table.arrays) * width * 4 >= 48 * MIB, "values and momentum"
    assert most - before < 8 * MIB + 16 * MIB
    assert list(tmp_path.iterdir()) == [], "the file has no name, so nothing is left after a crash"
    table.close()


def test_a_small_table_stays_in_memory(tmp_path: Path) -> None:
    table = RowStorage(4, np.dtype(np.float32), {}, rows=100, place=TablePlace(tmp_path, MIB))
    assert table.arrays.at_once is None


def test_the_space_is_the_disks_before_it_is_used(tmp_path: Path) -> None:
    array = GrowingArray(16, np.float32, directory=tmp_path)
    array.grow(100_000)
    assert array._file is not None
    reserved = os.fstat(array._file.fileno())
    assert reserved.st_blocks * 512 >= 100_000 * 64
    array.array[77] = 5
    array.grow(200_000)
    array.unmap()
    assert array.array[77].tolist() == [5.0] * 16
    assert not array.array[78:].any()
    array.close()


def test_a_full_disk_is_an_error_that_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = GrowingArray(16, np.float32, directory=tmp_path)
    array.grow(1000)
    array.array[3] = 1

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(MemoryError, match=r"cannot be reserved: .*No space left"):
            array.grow(1_000_000)
    assert array.array[3].sum() == 16
    array.grow(1_000_000)
    assert array.array[3].sum() == 16
    array.close()


def test_a_directory_that_there_is_not_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        GrowingArray(16, np.float32, directory=tmp_path / "none")
    with pytest.raises(ValueError, match="memory_bytes must be at least"):
        TablePlace(tmp_path, 0)


def test_a_place_takes_a_path_as_text_and_says_what_else_it_takes(tmp_path: Path) -> None:
    assert TablePlace(str(tmp_path), MIB).directory == tmp_path  # type: ignore[arg-type]  # plain programs do
    with pytest.raises(ValueError, match="memory_bytes: a whole number of bytes, such as 1 << 30, not '1MiB'"):
        TablePlace(tmp_path, "1MiB")  # type: ignore[arg-type]  # as the command line takes it
    with pytest.raises(ValueError, match="directory: a path, not 3"):
        TablePlace(3, MIB)  # type: ignore[arg-type]


def test_a_table_of_which_all_rows_are_there_is_not_asked_which_are() -> None:
    table = RowStorage(4, np.dtype(np.float32), {}, rows=100)
    order = np.random.default_rng(3).permutation(100)
    for low in range(0, 100, 30):
        places = np.sort(order[max(low - 10, 0) : low + 30])
        assert (table.find(places) < 0).any()
        table.find_or_add(places, 0, lambda new: np.repeat(new[:, None], 4, axis=1).astype(np.float32))
        assert table.count == min(low + 30, 100)
        lacks = table.read(None, np.arange(100))[1]
        assert (0 if lacks is None else np.count_nonzero(lacks)) == 100 - table.count
    values, lacks = table.read(None, order)
    assert lacks is None
    assert values[:, 0].tolist() == order.tolist()
