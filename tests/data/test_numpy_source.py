from __future__ import annotations

import ast
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npz_forgery import forge_npz, npy_header
from weft_data.errors import (
    ColumnLengthError,
    ColumnRefusedError,
    DataError,
    FileFormatError,
    MissingColumnError,
    RowRangeError,
    UnknownSourceError,
    UnreadableFileError,
)
from weft_data.numpy_source import SUMMED_S, NpzSource, open_source
from weft_data.source import Column, Description
from weft_graph.types import DType

SAVES = {"stored": np.savez, "compressed": np.savez_compressed}


def rows_of(*rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(rows, np.int64)


@pytest.fixture(params=sorted(SAVES))
def digits(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """12 rows: `image` float32 (12, 2, 3), `label` int64 (12,), stored or compressed."""
    path = tmp_path / "digits.npz"
    SAVES[request.param](path, image=np.arange(72, dtype=np.float32).reshape(12, 2, 3), label=np.arange(12) * 10)
    return path


def test_describe_tells_rows_and_columns(digits: Path) -> None:
    image, label = Column("image", DType.FLOAT32, (2, 3)), Column("label", DType.INT64, ())
    source = open_source("numpy", str(digits))
    assert source.describe() == Description(12, (image, label))
    assert source.describe().column("label") == label
    assert source.describe().column("weight") is None
    source.close()


def test_read_gives_the_rows_in_the_order_asked_for(digits: Path) -> None:
    source = open_source("numpy", str(digits))
    got = source.read(["label", "image"], rows_of(7, 0, 7))
    assert list(got) == ["label", "image"]
    assert got["label"].tolist() == [70, 0, 70]
    assert np.array_equal(got["image"], np.arange(72, dtype=np.float32).reshape(12, 2, 3)[[7, 0, 7]])
    assert source.read(["image"], rows_of())["image"].shape == (0, 2, 3)
    source.close()


def test_what_was_read_belongs_to_the_caller(digits: Path) -> None:
    source = open_source("numpy", str(digits))
    got = source.read(["label"], rows_of(1, 2))["label"]
    got[:] = -1
    source_again = source.read(["label"], rows_of(1, 2))["label"]
    source.close()
    assert source_again.tolist() == [10, 20]
    assert got.tolist() == [-1, -1]


dtypes = st.sampled_from(
    [np.dtype(order + each) for order in "<>" for each in ("f4", "f8", "f2", "i4", "i8", "u1", "?")]
)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from(sorted(SAVES)), st.booleans())
def test_any_array_a_graph_takes_reads_as_numpy_reads_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, save: str, fortran: bool
) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    array = data.draw(hnp.arrays(data.draw(dtypes), shape))
    path = tmp_path_factory.mktemp("any") / "a.npz"
    SAVES[save](path, pad=np.zeros((shape[0], 1), np.uint8), x=np.asfortranarray(array) if fortran else array)
    rows = data.draw(hnp.arrays(np.int64, st.integers(0, 8), elements=st.integers(0, shape[0] - 1)))
    source = NpzSource(str(path))
    got = source.read(["x"], rows)["x"]
    there = np.zeros_like(got)
    assert source.read(["x"], rows, out={"x": there})["x"] is there
    source.close()
    with np.load(path) as oracle:
        np.testing.assert_array_equal(got, oracle["x"][rows])
    np.testing.assert_array_equal(there, got)
    assert got.dtype.isnative
    assert got.flags.c_contiguous


def test_a_stored_column_is_mapped_and_a_compressed_one_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compressed column is above the limit on loaded bytes; the stored one of the same size is read anyway."""
    stored, compressed = tmp_path / "s.npz", tmp_path / "c.npz"
    np.savez(stored, x=np.zeros((1000, 100), np.float32))
    np.savez_compressed(compressed, x=np.zeros((1000, 100), np.float32))
    source = NpzSource(str(stored), loaded_bytes_limit=100)
    assert source.read(["x"], rows_of(999))["x"].shape == (1, 100)
    source.close()
    source = NpzSource(str(compressed), loaded_bytes_limit=100)
    with pytest.raises(ColumnRefusedError, match="'x' would take 400000 bytes"):
        source.read(["x"], rows_of(0))
    source.close()
    source = NpzSource(str(compressed))
    source.read(["x"], rows_of(0))
    monkeypatch.setattr("zipfile.ZipFile.open", None)
    assert source.read(["x"], rows_of(1))["x"].shape == (1, 100)
    source.close()


def test_a_file_opens_while_other_threads_parse_literals(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython before 3.13 counts the depths of all threads' literals in one place, and raises where they mix."""
    parse, mixed = ast.literal_eval, [SystemError("AST constructor recursion depth mismatch")] * 3

    def literal_eval(source: str) -> Any:
        if mixed:
            raise mixed.pop()
        return parse(source)

    monkeypatch.setattr(ast, "literal_eval", literal_eval)
    source = open_source("numpy", str(digits))
    assert source.describe().rows == 12
    source.close()


def test_a_huge_file_is_described_from_its_headers(tmp_path: Path) -> None:
    """The file is sparse: 3 GiB long, a few KiB of it on disk."""
    path = tmp_path / "huge.npz"
    header = npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (3145728, 1024), }")
    forge_npz(path, header, trailing_zeros=3 << 30)
    source = NpzSource(str(path))
    assert source.describe() == Description(3 << 20, (Column("x", DType.UINT8, (1024,)),))
    assert source.read(["x"], rows_of((3 << 20) - 1))["x"].tolist() == [[0] * 1024]
    source.close()


def test_columns_that_are_not_asked_for_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "mixed.npz"
    np.savez(path, x=np.ones(4), names=np.array(["a", "b"], object), test_x=np.ones(2), empty=np.ones(0))
    source = open_source("numpy", str(path), columns=["x"])
    assert source.describe() == Description(4, (Column("x", DType.FLOAT64, ()),))
    with pytest.raises(MissingColumnError):
        source.read(["names"], rows_of(0))
    source.close()


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([{}, 1], object), "Python objects"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), r"\('a', '<f4'\)"),
        (np.array(["a", "b"]), "is text; save numbers for it"),
        (np.zeros(2, np.complex64), "complex64"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
        (np.zeros(2, "S3"), "is text; save numbers for it"),
        (np.float32(1), "single number"),
        (np.zeros((0, 3)), "no elements"),
        (np.zeros((3, 0)), "no elements"),
    ],
)
def test_a_column_that_no_graph_can_take_is_refused_by_name(
    tmp_path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], why: str
) -> None:
    path = tmp_path / "refused.npz"
    np.savez(path, good=np.ones(2), bad=array)
    with pytest.raises(ColumnRefusedError, match=f"refused.npz.*'bad'.*({why})") as caught:
        open_source("numpy", str(path))
    assert (caught.value.path, caught.value.column) == (str(path), "bad")


def test_columns_of_different_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "uneven.npz"
    np.savez(path, x=np.ones(3), y=np.ones(4))
    with pytest.raises(ColumnLengthError, match="'y' has 4 rows, column 'x' has 3"):
        open_source("numpy", str(path))


def test_a_missing_column_is_named_beside_those_that_are_there(digits: Path) -> None:
    with pytest.raises(MissingColumnError, match=r"no column 'lable'; it has \['image', 'label'\]"):
        open_source("numpy", str(digits), columns=["lable"])
    source = open_source("numpy", str(digits))
    with pytest.raises(MissingColumnError, match="'lable'"):
        source.read(["lable"], rows_of(0))
    source.close()


@pytest.mark.parametrize("row", [-1, 12, 1 << 62])
def test_a_row_out_of_range_is_refused(digits: Path, row: int) -> None:
    source = open_source("numpy", str(digits))
    with pytest.raises(RowRangeError, match=f"rows 0 to 11; row {row}"):
        source.read(["image"], rows_of(0, row))
    source.close()


def test_a_type_that_is_none_is_refused(digits: Path) -> None:
    with pytest.raises(UnknownSourceError, match="'csv'; there is 'numpy'"):
        open_source("csv", str(digits))


def test_a_closed_source_reads_nothing(digits: Path) -> None:
    source = open_source("numpy", str(digits))
    source.close()
    source.close()
    with pytest.raises(UnreadableFileError, match="closed"):
        source.read(["label"], rows_of(0))


def test_a_file_that_is_cut_short_while_open_is_an_error_and_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_data.numpy_source.SETTLE_S", 0.0)
    path = tmp_path / "cut.npz"
    np.savez(path, x=np.ones((4096, 4)))
    source = open_source("numpy", str(path))
    source.read(["x"], rows_of(0))
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(FileFormatError, match="changed while"):
        source.read(["x"], rows_of(4000))
    source.close()


def test_every_error_is_a_data_error() -> None:
    errors = [UnknownSourceError, UnreadableFileError, FileFormatError, MissingColumnError, ColumnRefusedError]
    for each in [*errors, ColumnLengthError, RowRangeError]:
        assert issubclass(each, DataError)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_that_is_touched_or_written_anew_with_the_same_elements_is_read_on(tmp_path: Path, save: Any) -> None:
    path, told = tmp_path / "same.npz", []
    columns = {"x": np.arange(8192.0).reshape(-1, 2), "y": np.arange(4096)}
    save(path, **columns)
    source = open_source("numpy", str(path), tell=told.append)
    source.read(["x"], rows_of(0))
    os.utime(path, (0, 0))
    assert source.read(["x"], rows_of(7))["x"].tolist() == [[14.0, 15.0]]
    with path.open("r+b") as file:  # as a script that runs again does: first nothing is there, then the same
        whole = file.read()
        file.truncate(100)
        threading.Timer(0.2, lambda: path.write_bytes(whole)).start()
        assert source.read(["x", "y"], rows_of(4095))["y"].tolist() == [4095]
    (once,) = told
    assert "same.npz' was touched or written anew" in once
    source.close()


def test_a_file_that_is_touched_again_whenever_it_is_looked_at_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, looks = tmp_path / "touched.npz", []
    np.savez(path, x=np.arange(8))
    source = open_source("numpy", str(path))

    def touching(path: str, *_: object) -> None:
        looks.append(path)
        assert len(looks) < 10
        os.utime(path, (len(looks), len(looks)))

    monkeypatch.setattr("weft_data.numpy_source._check_sum", touching)
    os.utime(path, (0, 0))
    for row in range(3):
        os.utime(path, (row + 10, row + 10))
        assert source.read(["x"], rows_of(row))["x"].tolist() == [row]
    assert len(looks) == 1, "so soon, its headers alone are looked at"
    source.close()


def test_a_file_that_is_written_anew_with_other_elements_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, x=np.zeros((4096, 2)))
    source = open_source("numpy", str(path))
    source.read(["x"], rows_of(0))
    np.savez(path, x=np.ones((4096, 2)))
    with pytest.raises(FileFormatError, match=r"other.npz' was changed while .* move a new file .* `weft resume`"):
        source.read(["x"], rows_of(0))
    source.close()


def test_elements_that_changed_soon_after_the_last_check_are_seen_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checksums are compared once in a while, however often a file is touched; but what was touched since is then."""
    monkeypatch.setattr("weft_data.numpy_source.SETTLE_S", 0.0)
    path = tmp_path / "mapped.npz"
    np.savez(path, x=np.zeros((4096, 2)))
    source = open_source("numpy", str(path))
    os.utime(path, (0, 0))
    source.read(["x"], rows_of(0))
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff")
    source.read(["x"], rows_of(0))
    now = time.monotonic()
    monkeypatch.setattr("weft_data.numpy_source.time.monotonic", lambda: now + 2 * SUMMED_S)
    with pytest.raises(FileFormatError, match="was changed while"):
        source.read(["x"], rows_of(0))
    source.close()


def test_elements_that_changed_behind_their_checksum_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_data.numpy_source.SETTLE_S", 0.0)
    path = tmp_path / "mapped.npz"
    np.savez(path, x=np.zeros((4096, 2)))
    source = open_source("numpy", str(path))
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff")
    with pytest.raises(FileFormatError, match="was changed while"):
        source.read(["x"], rows_of(0))
    source.close()


def test_content_is_that_of_the_columns_looked_at_wherever_they_lie(tmp_path: Path) -> None:
    def content(name: str, save: Any = np.savez, **columns: Any) -> str:
        save(tmp_path / name, **columns)
        source = open_source("numpy", str(tmp_path / name), columns=["x", "y"])
        try:
            return source.describe().content
        finally:
            source.close()

    x, y = np.arange(6.0), np.arange(6)
    first = content("a.npz", x=x, y=y)
    assert first == content("b.npz", y=y, other=np.ones(3), x=x)
    assert first == content("c.npz", np.savez_compressed, x=x, y=y)
    assert first != content("d.npz", x=x, y=y[::-1])
    assert first != content("e.npz", x=x.astype(np.float32), y=y)
