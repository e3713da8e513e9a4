"""Files that lie, and paths that lead elsewhere."""

from __future__ import annotations

import os
import re
import socket
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npz_forgery import forge_npz, npy_bytes, npy_header
from weft_data.errors import ColumnRefusedError, DataError, FileFormatError, UnreadableFileError
from weft_data.numpy_source import NpzSource, open_source

TRUTH = npy_bytes(np.arange(6, dtype=np.float32))


def says(shape: str, descr: str = "'<f4'") -> bytes:
    return npy_header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


def test_an_honest_forgery_is_read(tmp_path: Path) -> None:
    """The forger's archives are good where nothing is forged, so the refusals below are of what they forge."""
    path = tmp_path / "honest.npz"
    forge_npz(path, TRUTH)
    source = NpzSource(str(path))
    assert source.read(["x"], np.arange(6))["x"].tolist() == [0, 1, 2, 3, 4, 5]
    source.close()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (says("(7,)") + bytes(24), r"shape \(7,\) of float32 takes 28 bytes, the archive holds 24"),
        (says("(5,)") + bytes(24), "takes 20 bytes"),
        (says("(4611686018427387904,)") + bytes(24), "takes 18446744073709551616 bytes"),
        (says(f"({10**30}, {10**30})") + bytes(24), "takes 4" + "0" * 60),
        (says("(-6,)") + bytes(24), "no elements"),
        (says("(1000000000000000000, 0)"), "no elements"),
        (says("'6'") + bytes(24), "shape"),
        (says("(6,)", "'|O'") + b"cos\nsystem\n(S'true'\ntR.", "Python objects"),
        (says("(6,)", "'no type'") + bytes(24), "cannot be read"),
        (says("(6,)", "__import__('os').getpid()") + bytes(24), "cannot be read"),
        (npy_header("{'descr': '<f4'}") + bytes(24), "cannot be read"),
        (npy_header("(" * 3000), "cannot be read"),
        (npy_header("-" * 4000 + "1"), "cannot be read"),
        (npy_header(" " * 60000), "cannot be read"),
        (npy_header("{'descr': [('ä', '<f4')], 'fortran_order': False, 'shape': (1,), }", version=3), "records"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(5000), "cannot be read"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "."),
        (b"not an array", "magic"),
        (b"", "cannot be read"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "lies.npz"
    forge_npz(path, content)
    with pytest.raises((FileFormatError, ColumnRefusedError), match=f"lies.npz.*'x'.*{why}"):
        NpzSource(str(path))


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"size": 1 << 20}, "bytes stored cannot hold 1048576"),
        ({"method": 8, "size": 1 << 31}, f"{len(TRUTH)} bytes deflated cannot hold 2147483648"),
        ({"compressed_size": 1 << 30, "size": 1 << 30}, "it would end at byte"),
        ({"method": 12}, "compression method 12"),
        ({"method": 14}, "compression method 14"),
        ({"flags": 1}, "encrypted"),
        ({"header_offset": 7}, "no member begins at byte 7|not a .npz archive"),
        ({"header_offset": 1 << 31}, "."),
    ],
)
def test_an_archive_whose_sizes_lie_is_refused(tmp_path: Path, forged: dict[str, int], why: str) -> None:
    path = tmp_path / "sizes.npz"
    forge_npz(path, TRUTH, **forged)  # type: ignore[arg-type]  # the dictionaries above hold its whole-number options
    with pytest.raises(FileFormatError, match=f"sizes.npz.*({why})"):
        NpzSource(str(path))


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def test_a_compressed_column_that_decompresses_to_more_or_to_less_is_refused(tmp_path: Path) -> None:
    claimed = says("(60000,)", "'|u1'")
    for length in (20_000, 1_000_000):
        path = tmp_path / f"{length}.npz"
        forge_npz(path, deflated(claimed + bytes(length)), method=8, size=len(claimed) + 60_000)
        source = NpzSource(str(path))
        with pytest.raises(FileFormatError, match=r"'x' (cannot be read|ends after)"):
            source.read(["x"], np.arange(3))
        source.close()


def test_a_member_given_twice_is_refused(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "twice.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", TRUTH)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", TRUTH)
    with pytest.raises(FileFormatError, match="'x' twice"):
        NpzSource(str(path))


def test_members_are_never_paths(tmp_path: Path) -> None:
    """A member's name is a column's name, whatever it looks like, and nothing is written anywhere."""
    path = tmp_path / "paths.npz"
    forge_npz(path, TRUTH, member="../../etc/x.npy")
    source = NpzSource(str(path))
    assert [column.name for column in source.describe().columns] == ["../../etc/x"]
    source.close()
    assert [each.name for each in tmp_path.iterdir()] == ["paths.npz"]


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"\0" * 5000, TRUTH])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "none.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"none\.npz"):
        NpzSource(str(path))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "whole.npz"
    np.savez_compressed(path, x=np.arange(30, dtype=np.float32), y=np.arange(30))
    return path.read_bytes()


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_archive_is_read_or_refused_and_never_anything_else(
    tmp_path_factory: pytest.TempPathFactory, archive: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(archive)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "damaged.npz"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(len(damaged) - 40, len(damaged)))]))
    try:
        source = NpzSource(str(path))
    except DataError:
        return
    try:
        for column in source.describe().columns:
            source.read([column.name], np.arange(source.describe().rows))
    except DataError:
        pass
    finally:
        source.close()


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "directory.npz").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.npz"))
        for name in ("pipe.npz", "directory.npz", "socket.npz", "absent.npz"):
            for roots in (None, [tmp_path]):
                with pytest.raises(UnreadableFileError, match=f"{tmp_path / name} on machine {socket.gethostname()}"):
                    open_source("numpy", str(tmp_path / name), roots=roots)
    with pytest.raises(UnreadableFileError, match="/dev/zero"):
        open_source("numpy", "/dev/zero")
    with pytest.raises(UnreadableFileError, match="null"):
        open_source("numpy", "a\0.npz")


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    started = f"('a.npz' starts from {tmp_path}, where the cluster was started)"
    told = f"cannot open {tmp_path}/a.npz on machine {socket.gethostname()}: No such file or directory {started}: copy"
    with pytest.raises(UnreadableFileError, match=f"^{re.escape(told)} the file there, or name one that is there$"):
        open_source("numpy", "a.npz")
    with pytest.raises(UnreadableFileError, match=r" is a directory: name a file in it$"):
        open_source("numpy", ".", roots=[tmp_path])


def test_with_roots_only_what_lies_under_one_is_opened(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "root-beside"
    (root / "deep").mkdir(parents=True)
    outside.mkdir()
    for directory in (root / "deep", outside):
        np.savez(directory / "a.npz", x=np.ones(2))
    (root / "inner").symlink_to(root / "deep")
    (root / "out.npz").symlink_to(outside / "a.npz")
    (root / "out").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (tmp_path / "other").symlink_to(root)
    for good in (root / "deep" / "a.npz", root / "inner" / "a.npz", tmp_path / "other" / "deep" / "a.npz"):
        open_source("numpy", str(good), roots=[tmp_path / "elsewhere", root]).close()
    bad = ["out.npz", "out/a.npz", "../root-beside/a.npz", "deep/../../root-beside/a.npz"]
    for path in [str(root / each) for each in bad] + [str(outside / "a.npz"), "/etc/passwd"]:
        with pytest.raises(UnreadableFileError, match=f"^{path} on machine .* is not below a directory"):
            open_source("numpy", path, roots=[root])
    for path in (root / "loop" / "a.npz", root):
        with pytest.raises(UnreadableFileError):
            open_source("numpy", str(path), roots=[root])
    with pytest.raises(UnreadableFileError, match="is not below a directory that jobs may read data from"):
        open_source("numpy", str(root / "deep" / "a.npz"), roots=[])


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "none.npz"
    path.write_bytes(b"nothing")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(FileFormatError):
            NpzSource(str(path))
    assert len(os.listdir("/proc/self/fd")) == before
