"""The source that reads a `.npz` file: each array is a column, rows along its first axis."""

from __future__ import annotations

import hashlib
import logging
import math
import mmap
import os
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

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
from weft_data.files import open_regular
from weft_data.npz_member import MALFORMED, SUFFIX, NpzMember, read_member
from weft_data.source import Array, Description, Rows, Source
from weft_graph.spelling import did_you_mean

SETTLE_S = 10.0
"""A file that somebody writes anew has so long to be whole again."""
LOOK_S = 0.05

SUMMED_S = 60.0
"""The least time between two comparisons of a file's elements with their checksums, if it is touched again and again;
20 times as long as a comparison takes, if that is more. Its headers are read after each touch."""

_log = logging.getLogger("weft.data")

LOADED_BYTES_LIMIT = 16 << 30
"""Bytes that a compressed column may take in memory; a stored one is mapped and has no limit."""


def open_source(
    type: str,  # noqa: A002  # the word that a job's data specification uses
    path: str,
    *,
    roots: Sequence[Path] | None = None,
    columns: Sequence[str] | None = None,
    tell: Callable[[str], None] = _log.warning,
) -> Source:
    """The source of a `type` ("numpy") at `path`; with `roots`, it must lie under one of them, links followed.

    With `columns`, only those are looked at: the file may hold others of any kind and length. `tell` hears, in words
    for people, that the file was written anew with the same elements. Raises DataError.
    """
    if type != "numpy":
        raise UnknownSourceError(f"there is no source of type {type!r}; there is 'numpy'", path=path)
    return NpzSource(path, roots=roots, columns=columns, tell=tell)


class NpzSource:
    """A `.npz` file. Columns stored as they are, are mapped; compressed ones are loaded once, at their first read.

    Opening reads headers alone, so it is cheap however large the file is. Nothing in the file is executed or trusted.
    """

    def __init__(
        self,
        path: str,
        *,
        roots: Sequence[Path] | None = None,
        columns: Sequence[str] | None = None,
        loaded_bytes_limit: int = LOADED_BYTES_LIMIT,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._path = path
        self._tell = tell
        self._limit = loaded_bytes_limit
        self._lock = threading.Lock()
        self._arrays: dict[str, Array] = {}
        self._sum_due = -math.inf
        self._is_sum_owed = False
        self._file: BinaryIO | None = open_regular(path, roots)
        try:
            self._opened = _identity(self._file)
            self._archive = _open_archive(path, self._file)
            self._members = _read_members(path, self._file, self._archive, columns)
            self._rows = _common_rows(path, self._members)
        except BaseException:
            self.close()
            raise

    def describe(self) -> Description:
        """What the file holds, from its headers."""
        content = repr(sorted(member.content for member in self._members.values()))
        columns = tuple(member.column for member in self._members.values())
        return Description(self._rows, columns, hashlib.sha256(content.encode()).hexdigest())

    def read(self, columns: Sequence[str], rows: Rows, *, out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """The rows asked for, an array (len(rows), *row_shape) for each column: that of `out`, or a new one.

        Raises MissingColumnError, RowRangeError, FileFormatError where the file is not what its headers say or has
        changed since it was opened, and UnreadableFileError once closed.
        """
        self._check_rows(rows)
        with self._lock:
            self._check_unchanged()
            if out is None:
                return {name: _gather(self._array(name), rows) for name in columns}
            for name in columns:
                _gather_into(self._array(name), rows, out[name])
            return {name: out[name] for name in columns}

    def close(self) -> None:
        """Release the file and what was loaded. Idempotent."""
        with self._lock:
            self._arrays.clear()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _check_rows(self, rows: Rows) -> None:
        if rows.dtype != np.int64 or rows.ndim != 1:
            raise TypeError(f"rows are a one-dimensional array of int64, not {rows.dtype} of shape {rows.shape}")
        # Below 0 is very large without a sign.
        if rows.size and np.maximum.reduce(rows.view(np.uint64)) >= self._rows:
            outside = rows[(rows < 0) | (rows >= self._rows)]
            message = f"{self._path!r} has rows 0 to {self._rows - 1}; row {outside[0]} was asked for"
            raise RowRangeError(message, path=self._path)

    def _check_unchanged(self) -> None:
        """A mapped file that was cut short would end the process with SIGBUS at the first page that is gone."""
        if self._file is None:
            raise UnreadableFileError(f"{self._path!r} was closed", path=self._path)
        if _identity(self._file) != self._opened or (self._is_sum_owed and time.monotonic() >= self._sum_due):
            self._look_again(self._file)

    def _look_again(self, file: BinaryIO) -> None:
        """Goes on where the file was touched, or written anew with what it held. If it is touched meanwhile, the next
        read looks again. Raises FileFormatError."""
        begun = time.monotonic()
        is_due = begun >= self._sum_due
        while True:
            found = _identity(file)
            try:
                archive = _open_archive(self._path, file)
                members = _read_members(self._path, file, archive, list(self._members))
                for member in members.values() if is_due else ():
                    _check_sum(self._path, archive, member)
                if _identity(file)[0] == found[0]:
                    break
            except DataError:  # it is being written
                pass
            if time.monotonic() >= begun + SETTLE_S:
                raise self._changed()
            time.sleep(LOOK_S)
        if {name: each.content for name, each in members.items()} != {
            name: each.content for name, each in self._members.items()
        }:
            raise self._changed()
        self._arrays = {name: array for name, array in self._arrays.items() if members[name].offset is None}  # Loaded.
        self._archive, self._members, self._opened = archive, members, found
        self._is_sum_owed = not is_due
        if is_due:
            now = time.monotonic()
            self._sum_due = now + max(SUMMED_S, 20 * (now - begun))
            self._tell(
                f"{self._path!r} was touched or written anew while it was being read; it holds what it held, and to "
                f"check it took {now - begun:.1f} s"
            )

    def _changed(self) -> FileFormatError:
        message = (
            f"{self._path!r} was changed while it was being read: what the job began with cannot be read any more. "
            "Write other data under another name, or move a new file over the old one, which is read to its end then; "
            "`weft resume` goes on from the newest snapshot once the file holds its data again"
        )
        return FileFormatError(message, path=self._path)

    def _array(self, name: str) -> Array:
        if name not in self._members:
            raise _missing(self._path, name, list(self._members))
        if name not in self._arrays:
            member = self._members[name]
            self._arrays[name] = self._loaded(member) if member.offset is None else self._mapped(member, member.offset)
        return self._arrays[name]

    def _mapped(self, member: NpzMember, offset: int) -> Array:
        assert self._file is not None
        mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return member.shaped(np.frombuffer(mapping, np.uint8, member.nbytes, offset))

    def _loaded(self, member: NpzMember) -> Array:
        """The elements, decompressed; zipfile checks their CRC when the last one is read."""
        name = member.column.name
        if member.nbytes > self._limit:
            message = f"{self._path!r}: column {name!r} would take {member.nbytes} bytes of memory, above the limit of"
            hint = f"{self._limit}; saved without compression it is mapped instead"
            raise ColumnRefusedError(f"{message} {hint}", path=self._path, column=name)
        try:
            with self._archive.open(member.info) as stream:
                stream.read(member.start)
                flat, filled = _read_all(stream, member.nbytes)
        except MALFORMED as error:
            message = f"{self._path!r}: column {name!r} cannot be read: {error}"
            raise FileFormatError(message, path=self._path, column=name) from error
        if filled != member.nbytes:
            message = f"{self._path!r}: column {name!r} ends after {filled} of {member.nbytes} bytes"
            raise FileFormatError(message, path=self._path, column=name)
        return member.shaped(flat)


def _gather(array: Array, rows: Rows) -> Array:
    return np.ascontiguousarray(array[rows], dtype=array.dtype.newbyteorder("="))


def _gather_into(array: Array, rows: Rows, out: Array) -> None:
    """The same into an array that is there already."""
    row_bytes = out[0].nbytes if len(out) else 0
    if array.dtype != out.dtype or not array.flags.c_contiguous or not row_bytes:
        out[...] = array[rows]
        return
    # Items without a type need not be aligned, as what lies in an archive seldom is: NumPy would copy all of it first.
    # The mode spares a copy of what is taken; no row is outside.
    item = np.dtype((np.void, row_bytes))
    array.reshape(-1).view(item).take(rows, out=out.reshape(-1).view(item), mode="clip")


def _read_all(stream: IO[bytes], nbytes: int) -> tuple[Array, int]:
    """(the bytes, how many came): the stream to its end, which is when zipfile checks the CRC."""
    flat = np.empty(nbytes, np.uint8)
    filled = 0
    while chunk := stream.read(1 << 20):
        flat[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    return flat, filled


def _identity(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _check_sum(path: str, archive: zipfile.ZipFile, member: NpzMember) -> None:
    """Reads it to its end, where zipfile compares its checksum with the elements. Raises FileFormatError."""
    try:
        with archive.open(member.info) as stream:
            while stream.read(1 << 20):
                pass
    except MALFORMED as error:
        raise FileFormatError(f"{path!r}: {error}", path=path, column=member.column.name) from error


def _open_archive(path: str, file: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except MALFORMED as error:
        remedy = "numpy.savez('rows.npz', x=x, y=y) writes one, also of a .npy file's or a CSV's arrays"
        raise FileFormatError(f"{path!r} is not a .npz archive: {error}; {remedy}", path=path) from error


def _read_members(
    path: str, file: BinaryIO, archive: zipfile.ZipFile, columns: Sequence[str] | None
) -> dict[str, NpzMember]:
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if not info.filename.endswith(SUFFIX):
            continue
        name = info.filename.removesuffix(SUFFIX)
        if name in infos:
            raise FileFormatError(f"{path!r} holds column {name!r} twice", path=path, column=name)
        infos[name] = info
    if not infos:
        raise FileFormatError(f"{path!r} holds no arrays", path=path)
    wanted = list(dict.fromkeys(columns)) if columns else list(infos)
    for name in wanted:
        if name not in infos:
            raise _missing(path, name, list(infos))
    return {name: read_member(path, file, archive, infos[name]) for name in wanted}


def _common_rows(path: str, members: dict[str, NpzMember]) -> int:
    counts = {name: member.rows for name, member in members.items()}
    first = next(iter(counts))
    for name, count in counts.items():
        if count != counts[first]:
            message = (
                f"{path!r}: column {name!r} has {count} rows, column {first!r} has {counts[first]}: give both as many"
            )
            raise ColumnLengthError(message, path=path, column=name)
    return counts[first]


def _missing(path: str, name: str, there: list[str]) -> MissingColumnError:
    near = did_you_mean(name, there) or f": save {name!r} too, or name another column"
    return MissingColumnError(f"{path!r} has no column {name!r}; it has {sorted(there)}{near}", path=path, column=name)
