"""The files of a snapshot: what each process of a job holds at one step, written side by side, and read by key.

A snapshot is a folder anywhere that fsspec reaches (a path, `s3://...`). Each process writes one safetensors document
there. Its tensors are flat parts of arrays: `ARRAY@START:KEY` has elements START and on of a key's `value`, or of an
array of the rule's state, and the numbers of `updates` made of the key's slices START and on. Who reads asks for any
elements of a key: the snapshot may have been written by other processes than there are now.

A table lies in blocks of rows in any order, each with its `row/ids`; START is the first one's number in the file. A
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
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, Final, NamedTuple, cast

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

MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""


class TensorFileError(StoreError):
    """A document is none, or not the one that is needed; the message names the tensor."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a document says of a tensor: name, dtype as NumPy names it, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self._numpy.itemsize

    @property
    def row_nbytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * self._numpy.itemsize

    @property
    def _numpy(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

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


class TensorFile:
    """Reads a document in a file that can be sought, which the caller closes. Raises TensorFileError, OSError."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        size = file.seek(0, os.SEEK_END)
        self._starts: dict[str, int] = {}
        self.tensors: dict[str, Tensor] = {}
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise TensorFileError(f"no safetensors document: {size} bytes, with a header of {length}")
        try:
            entries = json.loads(file.read(length))
            entries.pop("__metadata__", None)
            for name, entry in entries.items():
                self._add(str(name), entry, 8 + length, size)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TensorFileError(f"no safetensors document: {type(error).__name__}: {error}") from error

    def read(self, name: str) -> Array:
        """A whole tensor."""
        tensor = self.tensors[name]
        return self._read(tensor, self._starts[name], tensor.shape)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """The entries `start` to `stop` along the first axis."""
        tensor = self.tensors[name]
        begin = self._starts[name] + start * tensor.row_nbytes
        return self._read(tensor, begin, (stop - start, *tensor.shape[1:]))

    def _read(self, tensor: Tensor, start: int, shape: tuple[int, ...]) -> Array:
        array: Array = np.empty(shape, np.dtype(tensor.dtype))
        self._file.seek(start)
        wanted = bytes_of(array)
        count = self._file.readinto(wanted) if wanted.nbytes else 0  # type: ignore[attr-defined]  # BinaryIO lacks it
        if count != wanted.nbytes:
            raise TensorFileError(f"tensor {tensor.name!r}: the document ends in the midst of it")
        return array

    def _add(self, name: str, entry: Mapping[str, Any], base: int, size: int) -> None:
        kind = next((numpy for numpy, told in DTYPES.items() if told == entry["dtype"]), None)
        shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
        if kind is None or not all(type(each) is int and each >= 0 for each in (*shape, start, stop)):
            raise TensorFileError(f"tensor {name!r}: {entry['dtype']} of shape {list(shape)} at {start} to {stop}")
        tensor = Tensor(name, kind, shape)
        if stop - start != tensor.nbytes or base + stop > size:
            raise TensorFileError(
                f"tensor {name!r} is {tensor}, {tensor.nbytes} bytes; they are at {start} to {stop} of {size - base}"
            )
        self.tensors[name] = tensor
        self._starts[name] = base + start


# --- The files of a snapshot ------------------------------------------------------------------------------------------


VALUE: Final = "value"
UPDATES: Final = "updates"
ROWS: Final = "row/ids"
"""Of a block of a table's rows, as int64."""
GONE: Final = "table/gone"

READ_BYTES: Final = 1 << 22
"""Bytes of a file that are read at once to check it."""


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


class Part(NamedTuple):
    """Elements `start` and on of a key's array, `pieces` one behind the other: `size` of a NumPy dtype. They are gone
    through once, in the order of the parts."""

    array: str
    key: str
    start: int
    size: int
    dtype: str
    pieces: Iterable[Array]


MARK: Final = "job.json"
"""The server puts it beside a job's snapshots."""


def check_place(folder: str) -> None:
    """Raises SnapshotError where a folder for a snapshot is not in a place that the server has made."""
    place = folder.rstrip("/").rpartition("/")[0]
    try:
        system, path = url_to_fs(place, skip_instance_cache=True)
        if system.exists(f"{path}/{MARK}"):
            return
    except Exception as error:
        raise SnapshotError(f"{place} cannot be read: {_told(error)}") from error
    raise SnapshotError(
        f"{place}/{MARK} is not there: the server and its agents have to reach the same place (WEFT_SERVER_SNAPSHOTS)"
    )


def write_file(folder: str, name: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> SnapshotFile:
    """Writes a process's document. When it returns, a local file is on the disk. Raises SnapshotError, and leaves
    nothing then."""
    tensors = [Tensor(f"{part.array}@{part.start}:{part.key}", part.dtype, (part.size,)) for part in parts]
    digest, nbytes = hashlib.sha256(), 0
    try:
        system, path = url_to_fs(folder)
        system.makedirs(path, exist_ok=True)
        path = f"{path}/{name}"
        try:
            with system.open(path, "wb") as file:
                for piece in _document(tensors, metadata, parts):
                    file.write(piece)
                    digest.update(piece)
                    nbytes += len(piece)
                file.flush()
                with suppress(AttributeError, io.UnsupportedOperation):  # A file that is not local has no number.
                    os.fsync(file.fileno())
        except BaseException:
            with suppress(Exception):
                system.rm(path)
            raise
    except Exception as error:  # What the library of a protocol raises is its own; where it lacks, ImportError.
        raise SnapshotError(f"{folder}/{name} cannot be written: {_told(error)}") from error
    return SnapshotFile(name, nbytes, digest.hexdigest())


def _document(tensors: Sequence[Tensor], metadata: Mapping[str, str], parts: Iterable[Part]) -> Iterator[Any]:
    yield header_of(tensors, metadata)
    for part in parts:
        for piece in part.pieces:
            if piece.size:
                yield bytes_of(piece)


class SnapshotReader:
    """Reads arrays of a snapshot by key. A file is checked against its digest before anything is read from it. Used
    within `with`, by one thread. Raises SnapshotError."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.folder = snapshot.folder
        self._snapshot = snapshot
        self._files: dict[SnapshotFile, tuple[BinaryIO, TensorFile]] = {}
        self._parts: dict[tuple[str, str], list[tuple[int, int, SnapshotFile, str]]] = {}
        """Of a key's array: from which element to which, in which file, as which tensor."""
        self._tables: dict[str, list[tuple[SnapshotFile, int, str]]] = {}
        """Of a table what each file has, in order: ids of rows that have gone, and blocks of rows from a row on."""
        self._checked: set[SnapshotFile] = set()

    def __enter__(self) -> SnapshotReader:
        for file in self._snapshot.files:
            where = self._where(file)
            try:
                system, path = url_to_fs(where)
                opened = cast("BinaryIO", system.open(path, "rb"))
                tensors = TensorFile(opened)
            except Exception as error:
                self._close()
                raise SnapshotError(f"{where} cannot be read: {_told(error)}") from error
            self._files[file] = opened, tensors
            for name, tensor in tensors.tensors.items():
                place, _, key = name.partition(":")
                array, _, start = place.rpartition("@")
                begin = int(start)
                if not file.folder:
                    self._parts.setdefault((array, key), []).append((begin, begin + tensor.shape[0], file, name))
                if array in (ROWS, GONE):
                    self._tables.setdefault(key, []).append((file, begin, array))
        for parts in self._parts.values():
            parts.sort(key=lambda part: part[0])
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, array: str, key: str, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        """Elements `start` to before `stop` of a key's array, new and to be written."""
        found: Array = np.empty(stop - start, dtype)
        at = start
        for begin, end, file, name in self._parts.get((array, key), []):
            low, high = max(begin, at), min(end, stop)
            if low != at or low >= high:
                continue
            found[low - start : high - start] = self._read(file, name, low - begin, high - begin, dtype)
            at = high
        if at < stop:
            raise SnapshotError(f"{self._snapshot.folder} has no element {at} of the {array} of key {key!r}")
        return found

    def arrays(self, key: str) -> list[str]:
        """The names of a key's arrays."""
        return [array for array, of in self._parts if of == key]

    def each(self, array: str, key: str, dtype: np.dtype[Any]) -> list[Array]:
        """What each file has of a key's array."""
        parts = self._parts.get((array, key), [])
        return [self._read(file, name, 0, end - begin, dtype) for begin, end, file, name in parts]

    def rows(
        self, key: str, is_wanted: Callable[[Array], Array], dtypes: Mapping[str, np.dtype[Any]]
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        """The rows of a table whose ids (n) int64 are wanted (n) bool, block by block: ids, and arrays (n, ...); no
        arrays where the rows have gone. What comes later takes the place of what came before."""
        for file, begin, what in self._tables.get(key, []):
            ids = self._whole(file, what, begin, key, np.dtype(np.int64))
            wanted = is_wanted(ids)
            if not wanted.any():
                continue
            if what == GONE:
                yield ids[wanted], {}
            else:
                arrays = {name: self._whole(file, name, begin, key, dtype) for name, dtype in dtypes.items()}
                some = {name: array.reshape(len(ids), -1)[wanted] for name, array in arrays.items()}
                yield ids[wanted], some

    def _whole(self, file: SnapshotFile, array: str, begin: int, key: str, dtype: np.dtype[Any]) -> Array:
        name = f"{array}@{begin}:{key}"
        tensor = self._files[file][1].tensors.get(name)
        if tensor is None:
            raise SnapshotError(f"{self._where(file)} has no {name!r}")
        return self._read(file, name, 0, tensor.shape[0], dtype)

    def _read(self, file: SnapshotFile, name: str, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        opened, tensors = self._files[file]
        where = self._where(file)
        try:
            if file not in self._checked:
                _check(opened, file, where)
                self._checked.add(file)
            if np.dtype(tensors.tensors[name].dtype) != dtype:
                raise SnapshotError(f"{where}: {name!r} is of {tensors.tensors[name].dtype}, not of {dtype}")
            return tensors.read_rows(name, start, stop)
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"{where} cannot be read: {_told(error)}") from error

    def _where(self, file: SnapshotFile) -> str:
        folder = self._snapshot.folder
        return f"{folder.rpartition('/')[0]}/{file.folder}/{file.name}" if file.folder else f"{folder}/{file.name}"

    def _close(self) -> None:
        for file, _ in self._files.values():
            file.close()
        self._files.clear()


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def _check(opened: BinaryIO, file: SnapshotFile, where: str) -> None:
    """Raises SnapshotError where a file is not the one that was written."""
    digest, nbytes = hashlib.sha256(), 0
    opened.seek(0)
    while piece := opened.read(READ_BYTES):
        digest.update(piece)
        nbytes += len(piece)
    if nbytes != file.nbytes or digest.hexdigest() != file.sha256:
        told = f"{nbytes} bytes of {file.nbytes}" if nbytes != file.nbytes else "its SHA-256 is another"
        raise SnapshotError(f"{where} is not what was written: {told}")
