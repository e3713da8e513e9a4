"""Safetensors documents on disk: what an upload must be, and a document of some of a file's tensors.

A document is an 8-byte little-endian length, a JSON header of that length, then the tensors' bytes
(https://github.com/huggingface/safetensors). Values are never loaded whole: they are copied in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open

from weft.api.job import ParameterInfo
from weft_server.plan import nbytes

DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
"""Element types, as the format names them."""

PIECE_BYTES = 1 << 20
_HEADER_SLACK_BYTES = 1 << 16
_HEADER_ENTRY_BYTES = 512
"""What a tensor's entry takes beside its name, generously: dtype, shape and offsets as text."""


class ParameterFileError(Exception):
    """The document is not what the job's parameters are; the message names the parameter and both sides."""


@dataclass(frozen=True, slots=True)
class _Entry:
    start: int
    """Offset in the file."""
    stop: int
    header: dict[str, Any]


def largest_document(parameters: Sequence[ParameterInfo]) -> int:
    """Bytes that a document of these parameters may have; the header may be laid out generously."""
    names = sum(6 * len(each.name) + _HEADER_ENTRY_BYTES for each in parameters)
    return 8 + _HEADER_SLACK_BYTES + names + sum(map(nbytes, parameters))


def check_document(path: Path, parameters: Sequence[ParameterInfo]) -> None:
    """Reads the header alone. Raises ParameterFileError where it is not that of exactly these parameters."""
    try:
        with safe_open(path, framework="numpy") as document:
            there = {name: document.get_slice(name) for name in document.keys()}  # noqa: SIM118  # not a mapping
            found = {name: (each.get_dtype(), list(each.get_shape())) for name, each in there.items()}
    except (SafetensorError, OSError) as error:
        raise ParameterFileError(f"it is no safetensors document: {error}") from error
    wanted = {each.name: (DTYPES[each.dtype], each.shape) for each in parameters}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise ParameterFileError(f"parameter {name!r} is not in it")
        if name not in wanted:
            raise ParameterFileError(f"it holds {name!r}, which is no parameter of the job")
        if found[name] != wanted[name]:
            raise ParameterFileError(f"parameter {name!r} is {_show(found[name])}, the job's is {_show(wanted[name])}")


class Selection:
    """A document of some of a file's tensors, in the order asked for. `size` is its length in bytes.

    Raises KeyError for a name that the file lacks. The file may be replaced or deleted meanwhile.
    """

    def __init__(self, path: Path, names: Sequence[str] | None = None) -> None:
        self._file = path.open("rb")
        try:
            entries = _entries(self._file)
            chosen = {name: entries[name] for name in (entries if names is None else dict.fromkeys(names))}
        except BaseException:
            self._file.close()
            raise
        self._parts = [(each.start, each.stop) for each in chosen.values()]
        self._head = _header(chosen)
        self.size = len(self._head) + sum(stop - start for start, stop in self._parts)

    def pieces(self) -> Iterator[bytes]:
        """The document's bytes; closes the file at the end, also when it is not read to the end."""
        try:
            yield self._head
            for start, stop in self._parts:
                self._file.seek(start)
                for offset in range(start, stop, PIECE_BYTES):
                    yield self._file.read(min(PIECE_BYTES, stop - offset))
        finally:
            self._file.close()


def _entries(file: BinaryIO) -> dict[str, _Entry]:
    """The tensors of a checked file, in the order of their bytes."""
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    base = 8 + length
    entries = {
        name: _Entry(base + entry["data_offsets"][0], base + entry["data_offsets"][1], entry)
        for name, entry in header.items()
    }
    return dict(sorted(entries.items(), key=lambda item: item[1].start))


def _header(chosen: dict[str, _Entry]) -> bytes:
    document: dict[str, Any] = {}
    offset = 0
    for name, entry in chosen.items():
        size = entry.stop - entry.start
        document[name] = {**entry.header, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _show(kind: tuple[str, list[int]]) -> str:
    return f"{kind[0]}{kind[1]}"
