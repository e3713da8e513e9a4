"""Safetensors documents written and read in pieces: a table is never whole in memory.

A document is an 8-byte little-endian length, a JSON header of that length, then the tensors' bytes
(https://github.com/huggingface/safetensors). The library of that name reads and writes whole tensors, and what it maps
counts as this process's memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, Final

import numpy as np

from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.errors import StoreError

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
