"""One array of a `.npz` archive: what its headers say, checked against each other before anything is read."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from tokenize import TokenError
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from weft_data.errors import ColumnRefusedError, FileFormatError
from weft_data.source import Array, Column
from weft_graph.literals import parsed_header
from weft_graph.types import DType

SUFFIX = ".npy"
HEADER_LIMIT = 4096
"""Bytes of a `.npy` header that are parsed: the longest that a plain array of 64 dimensions needs is below 2 KiB."""

DEFLATE_RATIO = 1032
"""How many bytes one byte of a deflate stream can become at most (zlib, technical details)."""

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a zip's local file header: signature, length of the name, length of the extra field (APPNOTE.TXT 4.3.7)."""

MALFORMED = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError,
    TypeError, SyntaxError, TokenError, OverflowError, MemoryError, KeyError, IndexError,
)  # fmt: skip
"""What zipfile and numpy's header parser raise on bytes that are no archive; RuntimeError covers deep nesting."""

_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True, slots=True)
class NpzMember:
    """An array in the archive. `dtype` is as stored, `start` counts the bytes before its elements in the member.

    `offset` is where its elements begin in the file if they are stored as they are, None if they are compressed.
    """

    info: zipfile.ZipInfo
    column: Column
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    fortran: bool
    start: int
    offset: int | None

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def content(self) -> tuple[object, ...]:
        """What its elements are, by the checksum that the archive has of them."""
        return self.column.name, self.dtype.str, self.shape, self.fortran, self.info.CRC, self.info.file_size

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def shaped(self, flat: Array) -> Array:
        """The member's bytes, one-dimensional, as the array that its header describes. A view."""
        return flat.view(self.dtype).reshape(self.shape, order="F" if self.fortran else "C")


def read_member(path: str, file: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NpzMember:
    """Reads the headers of one member, never its elements.

    Raises FileFormatError where headers contradict each other or the file, ColumnRefusedError where the array is none
    that a graph can take.
    """
    name = info.filename.removesuffix(SUFFIX)
    try:
        offset = _check_sizes(file, info)
        with archive.open(info) as stream:
            head = io.BytesIO(stream.read(HEADER_LIMIT))  # numpy would read as much header as the member claims
        version = npy.read_magic(head)
        if version not in _HEADERS:
            raise ColumnRefusedError(_says(path, name, "is an array of records"), path=path, column=name)
        shape, fortran, dtype = parsed_header(_HEADERS[version], head, max_header_size=HEADER_LIMIT)
        shape, start = tuple(int(dim) for dim in shape), head.tell()
        column = _column(path, name, shape, dtype)
        declared, there = math.prod(shape) * dtype.itemsize, info.file_size - start
        if declared != there:
            raise ValueError(f"shape {shape} of {dtype} takes {declared} bytes, the archive holds {there}")
    except MALFORMED as error:
        raise FileFormatError(_says(path, name, f"cannot be read: {error}"), path=path, column=name) from error
    return NpzMember(info, column, dtype, shape, fortran, start, None if offset is None else offset + start)


def _check_sizes(file: BinaryIO, info: zipfile.ZipInfo) -> int | None:
    """Checks the sizes that the archive tells; returns where a stored member's bytes begin, None for a deflated one."""
    if info.flag_bits & 1:
        raise ValueError("it is encrypted")
    if info.compress_type not in _METHODS:
        raise ValueError(f"compression method {info.compress_type} is none of {sorted(_METHODS.values())}")
    file.seek(info.header_offset)
    signature, name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise ValueError(f"no member begins at byte {info.header_offset}")
    start = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
    end = file.seek(0, 2)
    if start + info.compress_size > end:
        raise ValueError(f"it would end at byte {start + info.compress_size} of a file of {end} bytes")
    stored = info.compress_type == zipfile.ZIP_STORED
    most = info.compress_size * (1 if stored else DEFLATE_RATIO)
    if info.file_size > most or (stored and info.file_size != most):
        raise ValueError(f"{info.compress_size} bytes {_METHODS[info.compress_type]} cannot hold {info.file_size}")
    return start if stored else None


def _column(path: str, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Column:
    """The column that a header describes. Raises ColumnRefusedError where no graph can take it."""

    def refused(why: str) -> ColumnRefusedError:
        return ColumnRefusedError(_says(path, name, why), path=path, column=name)

    if dtype.hasobject:
        raise refused(
            "holds Python objects, which are never loaded; save it as numbers, such as with .astype('float32'); "
            "rows that are not equally long have to be padded"
        )
    if dtype.kind in "US":
        raise refused("is text; save numbers for it, such as numpy.unique(column, return_inverse=True)[1]")
    known = [str(each) for each in DType]
    if dtype.names is not None or dtype.subdtype is not None or dtype.newbyteorder("=").name not in known:
        raise refused(f"is of {dtype}; a graph takes {', '.join(known)}")
    if not shape:
        raise refused("is a single number; a column has rows along its first axis")
    if min(shape) <= 0:
        raise refused(f"has shape {shape}, which holds no elements")
    return Column(name, DType(dtype.newbyteorder("=").name), shape[1:])


def _says(path: str, name: str, what: str) -> str:
    return f"{path!r}: column {name!r} {what}"
