"""The files of a snapshot: what each process of a job holds at one step, written side by side, and read by key.

A snapshot is a folder anywhere that fsspec reaches (a path, `s3://...`). Each process writes one safetensors document
there. Its tensors are flat ranges of arrays: `ARRAY@START:KEY` has elements START and on of a key's `value`, or of an
array of the rule's state, and the numbers of `updates` made of the key's slices START and on. Who reads asks for any
elements of a key: the snapshot may have been written by other processes than there are now.

A table lies in row groups, in any order, each with its `row/ids`; START is its first row's number in the file. A
file may have only rows that have changed since another one was written, and the ids of those that have gone
(`table/gone`): a snapshot names all files that it needs, the oldest first. All else is in its own ones.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, Final, NamedTuple, cast

import msgspec
import numpy as np
from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # it has no stubs

from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.errors import StoreError
from weft_kvstore.structs import Reader

# --- Safetensors documents, written and read in pieces: a table is never whole in memory ------------------------------
# A document is an 8-byte little-endian length, a JSON header of that length, then the tensors' bytes
# (https://github.com/huggingface/safetensors). The library of that name reads and writes whole tensors, and what it
# maps counts as this process's memory.


DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "BOOL",
        "uint8": "U8",
        "int8": "I8",
        "int16": "I16",
        "int32": "I32",
        "int64": "I64",
        "float16": "F16",
        "float32": "F32",
        "float64": "F64",
    }
)
"""Element types, as the format names them."""

MAX_FILE_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""


class TensorFileError(StoreError):
    """A document is none, or not the one that is needed; the message names the tensor."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a document says of a tensor: name, dtype as NumPy names it, shape. `start`: where its bytes begin in the
    file that it was found in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def header_of(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    """What a document of `tensors`, whose bytes follow in that order, begins with."""
    document: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in tensors:
        offsets = [offset, offset + tensor.nbytes]
        document[tensor.name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        offset += tensor.nbytes
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class _Entry(msgspec.Struct, frozen=True):
    """What a header says of a tensor."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


_headers: Final[Reader[dict[str, msgspec.Raw]]] = Reader(dict[str, msgspec.Raw])
_entries: Final[Reader[_Entry]] = Reader(_Entry)


class TensorFile:
    """Reads a document in a file that can be sought, which the caller closes. Raises TensorFileError, OSError."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        size = file.seek(0, os.SEEK_END)
        self.tensors: dict[str, Tensor] = {}
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, MAX_FILE_HEADER_BYTES):
            raise TensorFileError(f"no safetensors document: {size} bytes, with a header of {length}")
        try:
            for name, entry in _headers.from_json(file.read(length)).items():
                if name != "__metadata__":
                    self._add(name, _entries.from_json(entry), 8 + length, size)
        except (ValueError, RecursionError) as error:
            raise TensorFileError(f"no safetensors document: {error}") from error

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """A whole tensor, or the entries `start` to `stop` along the first axis."""
        tensor = self.tensors[name]
        shape = tensor.shape if stop is None else (stop - start, *tensor.shape[1:])
        array: Array = np.empty(shape, np.dtype(tensor.dtype))
        self.file.seek(tensor.start + start * math.prod(tensor.shape[1:]) * array.itemsize)
        wanted = bytes_of(array)
        count = self.file.readinto(wanted) if wanted.nbytes else 0  # type: ignore[attr-defined]  # BinaryIO lacks it
        if count != wanted.nbytes:
            raise TensorFileError(f"tensor {name!r}: the document ends in the midst of it")
        return array

    def _add(self, name: str, entry: _Entry, base: int, size: int) -> None:
        kind = next((numpy for numpy, shown in DTYPES.items() if shown == entry.dtype), None)
        start, stop = entry.data_offsets
        if kind is None:
            raise TensorFileError(f"tensor {name!r}: {entry.dtype} is none of {', '.join(DTYPES.values())}")
        tensor = Tensor(name, kind, entry.shape, base + start)
        if start < 0 or stop - start != tensor.nbytes or base + stop > size:
            raise TensorFileError(
                f"tensor {name!r} is {tensor}, {tensor.nbytes} bytes; they are at {start} to {stop} of {size - base}"
            )
        self.tensors[name] = tensor


# --- The files of a snapshot ------------------------------------------------------------------------------------------


VALUE: Final = "value"
UPDATES: Final = "updates"
ROWS: Final = "row/ids"
"""Of a row group of a table, as int64."""
GONE: Final = "table/gone"


class SnapshotError(StoreError):
    """A snapshot cannot be written, or is not what was written; the message names the file and what is wrong."""


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of a snapshot: its name in the folder, its length in bytes, and its SHA-256 in hexadecimal digits.
    `folder`: the name of another one beside the snapshot's, where it lies there."""

    name: str
    nbytes: int
    sha256: str
    folder: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """A whole snapshot: the values at version `step`, which is the next step to be done. `loss_scale` is that step's,
    where there is one, and `finite_steps` are those in a row since it last changed."""

    step: int
    folder: str
    files: tuple[SnapshotFile, ...]
    loss_scale: float | None = None
    finite_steps: int = 0


snapshots: Final[Reader[Snapshot]] = Reader(Snapshot)


class CapturedArray(NamedTuple):
    """Elements `start` and on of a key's array, `size` of a NumPy dtype: those of `values`, one behind the other, which
    are gone through once, in the order of a file's arrays."""

    array: str
    key: str
    start: int
    size: int
    dtype: str
    values: Iterable[Array]


def captured_array(array: str, key: str, start: int, elements: Array) -> CapturedArray:
    """One whose elements (n) are in one NumPy array."""
    return CapturedArray(array, key, start, elements.size, str(elements.dtype), [elements])


MARKER_FILE: Final = "job.json"
"""The server puts it beside a job's snapshots."""


def has_marker(folder: str) -> bool:
    """Whether a folder for a snapshot is in a place that the server has made. Raises SnapshotError."""
    parent = folder.rstrip("/").rpartition("/")[0]
    try:
        system, path = url_to_fs(parent, skip_instance_cache=True)
        return bool(system.exists(f"{path}/{MARKER_FILE}"))
    except Exception as error:
        raise SnapshotError(f"{parent} cannot be read: {_text_of(error)}") from error


def check_marker(folder: str) -> None:
    """Raises SnapshotError where a folder for a snapshot is not in a place that the server has made."""
    if not has_marker(folder):
        parent = folder.rstrip("/").rpartition("/")[0]
        raise SnapshotError(
            f"{parent}/{MARKER_FILE} is not there: the server and its agents have to reach the same place "
            "(WEFT_SERVER_SNAPSHOTS)"
        )


def write_file(folder: str, name: str, captured: Sequence[CapturedArray], metadata: Mapping[str, str]) -> SnapshotFile:
    """Writes a process's document. When it returns, a local file is on the disk. Raises SnapshotError, and leaves
    nothing then."""
    tensors = [Tensor(f"{one.array}@{one.start}:{one.key}", one.dtype, (one.size,)) for one in captured]
    digest, nbytes = hashlib.sha256(), 0
    try:
        system, path = url_to_fs(folder)
        system.makedirs(path, exist_ok=True)
        path = f"{path}/{name}"
        try:
            with system.open(path, "wb") as file:
                buffers = (bytes_of(array) for one in captured for array in one.values if array.size)
                for buffer in chain((memoryview(header_of(tensors, metadata)),), buffers):
                    file.write(buffer)
                    digest.update(buffer)
                    nbytes += len(buffer)
                file.flush()
                with suppress(AttributeError, io.UnsupportedOperation):  # A file that is not local has no number.
                    os.fsync(file.fileno())
        except BaseException:
            with suppress(Exception):
                system.rm(path)
            raise
    except Exception as error:  # What the library of a protocol raises is its own; where it lacks, ImportError.
        raise SnapshotError(f"{folder}/{name} cannot be written: {_text_of(error)}") from error
    return SnapshotFile(name, nbytes, digest.hexdigest())


class _Stored(NamedTuple):
    """Elements `start` to `stop` of a key's array, as tensor `name` of a file."""

    start: int
    stop: int
    file: SnapshotFile
    name: str


class SnapshotReader:
    """Reads arrays of a snapshot by key. A file is checked against its digest before anything is read from it. Used
    within `with`, by one thread. Raises SnapshotError."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.folder = snapshot.folder
        self._snapshot = snapshot
        self._files: dict[SnapshotFile, TensorFile] = {}
        self._stored: dict[tuple[str, str], list[_Stored]] = {}
        """A key's array, in the snapshot's own files, in order of its elements."""
        self._row_groups: dict[str, list[tuple[str, _Stored]]] = {}
        """By table, in the order of the files: ids of rows that have gone, and row groups."""
        self._checked: set[SnapshotFile] = set()

    def __enter__(self) -> SnapshotReader:
        for file in self._snapshot.files:
            with self._reading(file):
                system, path = url_to_fs(self._where(file))
                self._files[file] = TensorFile(cast("BinaryIO", system.open(path, "rb")))
            for name, tensor in self._files[file].tensors.items():
                where, _, key = name.partition(":")
                array, _, start = where.rpartition("@")
                stored = _Stored(int(start), int(start) + tensor.shape[0], file, name)
                if not file.folder:
                    self._stored.setdefault((array, key), []).append(stored)
                if array in (ROWS, GONE):
                    self._row_groups.setdefault(key, []).append((array, stored))
        for of_array in self._stored.values():
            of_array.sort(key=lambda one: one.start)
        return self

    def __exit__(self, *error: object) -> None:
        for document in self._files.values():
            document.file.close()
        self._files.clear()

    def read(self, array: str, key: str, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        """Elements `start` to before `stop` of a key's array, new and to be written."""
        found: Array = np.empty(stop - start, dtype)
        at = start
        for one in self._stored.get((array, key), []):
            low, high = max(one.start, at), min(one.stop, stop)
            if low == at and low < high:
                found[low - start : high - start] = self._read(one, low, high, dtype)
                at = high
        if at < stop:
            raise SnapshotError(f"{self.folder} has no element {at} of the {array} of key {key!r}")
        return found

    def arrays(self, key: str) -> list[str]:
        """The names of a key's arrays."""
        return [array for array, of in self._stored if of == key]

    def each(self, array: str, key: str, dtype: np.dtype[Any]) -> list[Array]:
        """What each file has of a key's array."""
        return [self._read(one, one.start, one.stop, dtype) for one in self._stored.get((array, key), [])]

    def rows(
        self, key: str, is_wanted: Callable[[Array], Array], dtypes: Mapping[str, np.dtype[Any]]
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        """The rows of a table whose ids (n) int64 are wanted (n) bool, group by group: ids, and arrays (n, ...); no
        arrays where the rows have gone. What comes later takes the place of what came before."""
        for kind, group in self._row_groups.get(key, []):
            ids = self._read(group, group.start, group.stop, np.dtype(np.int64))
            wanted = is_wanted(ids)
            if not wanted.any():
                continue
            found: dict[str, Array] = {}
            for name, dtype in dtypes.items() if kind == ROWS else ():
                one = group._replace(name=f"{name}@{group.start}:{key}")
                tensor = self._files[group.file].tensors.get(one.name)
                if tensor is None:
                    raise SnapshotError(f"{self._where(group.file)} has no {one.name!r}")
                array = self._read(one, group.start, group.start + tensor.shape[0], dtype)
                found[name] = array.reshape(len(ids), -1)[wanted]
            yield ids[wanted], found

    def _read(self, stored: _Stored, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        with self._reading(stored.file):
            document = self._files[stored.file]
            if stored.file not in self._checked:
                _check(document.file, stored.file)
                self._checked.add(stored.file)
            found = document.tensors[stored.name].dtype
            if np.dtype(found) != dtype:
                raise TensorFileError(f"{stored.name!r} is of {found}, not of {dtype}")
            return document.read(stored.name, start - stored.start, stop - stored.start)

    @contextmanager
    def _reading(self, file: SnapshotFile) -> Iterator[None]:
        """Names the file in errors of reading it."""
        try:
            yield
        except Exception as error:
            raise SnapshotError(f"{self._where(file)} cannot be read: {_text_of(error)}") from error

    def _where(self, file: SnapshotFile) -> str:
        folder = self._snapshot.folder
        return f"{folder.rpartition('/')[0]}/{file.folder}/{file.name}" if file.folder else f"{folder}/{file.name}"


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _check(opened: BinaryIO, file: SnapshotFile) -> None:
    """Raises TensorFileError where a file is not the one that was written."""
    opened.seek(0)
    digest = hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]  # it wants readinto
    nbytes = opened.tell()
    if nbytes != file.nbytes or digest != file.sha256:
        difference = f"{nbytes} bytes of {file.nbytes}" if nbytes != file.nbytes else "its SHA-256 is another"
        raise TensorFileError(f"it is not what was written: {difference}")
