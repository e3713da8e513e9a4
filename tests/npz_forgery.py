"""Zip archives of one member whose headers say whatever a test wants, laid out after APPNOTE.TXT 4.3."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np


def npy_bytes(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    """The array as a `.npy` file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def npy_header(text: str, *, version: int = 1) -> bytes:
    """A `.npy` header of this text, true or not."""
    length = struct.pack("<H" if version == 1 else "<I", len(text.encode()))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text.encode()


def forge_npz(
    path: Path,
    stored: bytes,
    *,
    member: str = "x.npy",
    method: int = 0,
    flags: int = 0,
    size: int | None = None,
    compressed_size: int | None = None,
    header_offset: int = 0,
    trailing_zeros: int = 0,
) -> None:
    """Writes an archive whose one member's bytes are `stored`, then `trailing_zeros` that take no room on disk.

    `size` and `compressed_size` are what the headers claim, the truth where left out.
    """
    length = len(stored) + trailing_zeros
    claimed = length if compressed_size is None else compressed_size
    sizes = struct.pack("<III", zlib.crc32(stored), claimed, length if size is None else size)
    name = member.encode()
    common = struct.pack("<HHHHH", 20, flags, method, 0, 33) + sizes + struct.pack("<HH", len(name), 0)
    with path.open("wb") as file:
        file.write(b"PK\x03\x04" + common + name + stored)
        file.seek(trailing_zeros, io.SEEK_CUR)
        start = file.tell()
        file.write(b"PK\x01\x02\x14\x00" + common + struct.pack("<HHHII", 0, 0, 0, 0, header_offset) + name)
        length = file.tell() - start
        file.write(b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, length, start, 0))
