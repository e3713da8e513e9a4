"""Safetensors documents on disk: what an upload must be, and a document of some of a file's tensors.

A document is an 8-byte little-endian length, a JSON header of that length, then the tensors' bytes
(https://github.com/huggingface/safetensors). Values are never loaded whole: they are copied in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open

from weft.api.job import ParameterInfo
from weft.api.problem import FieldError
from weft.api.values import STATE, state_key, state_tensor
from weft_graph.json_place import escape_token
from weft_server.planning.plan import nbytes

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
MOST_ERRORS = 50
MOST_SAID = 3
"""Errors in the message's one line."""
_HEADER_SLACK_BYTES = 1 << 16
_HEADER_ENTRY_BYTES = 512
"""What a tensor's entry takes beside its name, generously: dtype, shape and offsets as text."""


Header = dict[str, tuple[str, list[int]]]
"""Tensor -> (element type as the format names it, shape)."""


class ParameterFileError(Exception):
    """The document is not what it should be. `errors` have pointers by tensor; the first ones make the message."""

    def __init__(self, message: str, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(message or "; ".join(error.detail for error in errors[:MOST_SAID]))
        self.errors = list(errors)


@dataclass(frozen=True, slots=True)
class _Entry:
    start: int
    """Offset in the file."""
    stop: int
    header: dict[str, Any]


def largest_header(parameters: Sequence[ParameterInfo]) -> int:
    """Bytes that the header of a document of these parameters may have; it may be laid out generously."""
    return _HEADER_SLACK_BYTES + sum(6 * len(each.name) + _HEADER_ENTRY_BYTES for each in parameters)


def largest_document(parameters: Sequence[ParameterInfo]) -> int:
    """Bytes that a document of these parameters may have."""
    return 8 + largest_header(parameters) + sum(map(nbytes, parameters))


def state_parameters(parameters: Sequence[ParameterInfo], arrays: int) -> list[ParameterInfo]:
    """As many tensors as a rule with so many state arrays keeps beside the parameters; their names are longer at most.

    For the document's size alone.
    """
    trained = [each for each in parameters if each.trainable]
    return [each.model_copy(update={"name": state_tensor("-" * 128, each.name)}) for each in trained] * arrays


def read_header(path: Path, limit: int) -> Header:
    """A document's tensors. Raises ParameterFileError where it is none, or its header has more than `limit` bytes."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > limit:
            raise ParameterFileError(f"its header says that it has {length} bytes; at most {limit} are taken")
        with safe_open(path, framework="numpy") as document:
            there = {name: document.get_slice(name) for name in document.keys()}  # noqa: SIM118  # not a mapping
            return {name: (each.get_dtype(), list(each.get_shape())) for name, each in there.items()}
    except (SafetensorError, OSError) as error:
        raise ParameterFileError(f"it is no safetensors document: {error}") from error


def check_document(
    path: Path, parameters: Sequence[ParameterInfo], arrays: int = 0, *, state_required: bool = True
) -> None:
    """Reads the header alone. Raises ParameterFileError where it is not that of exactly these parameters.

    With `arrays` above 0, each trainable parameter has so many state arrays of its own type beside it; there may be
    none at all where they are not required.
    """
    limit = largest_header([*parameters, *state_parameters(parameters, arrays)])
    found = read_header(path, limit)
    state = {name: found.pop(name) for name in list(found) if arrays and name.startswith(STATE)}
    missing = [
        FieldError(pointer=f"/{escape_token(each.name)}", detail=f"parameter {each.name!r} is not in it")
        for each in parameters
        if each.name not in found
    ]
    errors = [*missing, *part_errors(found, parameters)]
    if state or state_required:
        errors += _state_errors(state, parameters, arrays)
    if errors:
        raise ParameterFileError("", errors[:MOST_ERRORS])


def part_errors(found: Header, parameters: Sequence[ParameterInfo]) -> Iterator[FieldError]:
    """What of a document's tensors is not as the job's parameters are; it may lack some."""
    wanted = _kinds(parameters)
    for name in sorted(found):
        pointer = f"/{escape_token(name)}"
        if name not in wanted:
            yield FieldError(pointer=pointer, detail=f"it holds {name!r}, which is no parameter of the job")
        elif found[name] != wanted[name]:
            detail = f"parameter {name!r} is {_show(found[name])}, the job's is {_show(wanted[name])}"
            yield FieldError(pointer=pointer, detail=detail)


def _state_errors(state: Header, parameters: Sequence[ParameterInfo], arrays: int) -> Iterator[FieldError]:
    wanted = _kinds([each for each in parameters if each.trainable])
    counts = dict.fromkeys(wanted, 0)
    for name, kind in sorted(state.items()):
        key = state_key(name)
        if key not in wanted or kind != wanted[key]:
            yield FieldError(
                pointer=f"/{escape_token(name)}", detail=f"{name!r} is {_show(kind)}, no state of a parameter"
            )
        else:
            counts[key] += 1
    for key, count in counts.items():
        if count != arrays:
            detail = f"parameter {key!r} has {count} state arrays in it, its optimizer has {arrays}"
            yield FieldError(pointer=f"/{escape_token(key)}", detail=detail)


def _kinds(parameters: Sequence[ParameterInfo]) -> Header:
    return {each.name: (DTYPES[each.dtype], each.shape) for each in parameters}


class Selection:
    """A document of some of a file's tensors. `size` is its length in bytes.

    All parameters where no names are given; with `state`, the optimizer's state of the same parameters too. Raises
    KeyError for a name that the file lacks. The file may be replaced or deleted meanwhile.
    """

    def __init__(self, path: Path, names: Sequence[str] | None = None, *, state: bool = False) -> None:
        self._file = path.open("rb")
        try:
            entries = _entries(self._file)
            chosen = {name: entries[name] for name in _chosen(entries, names, state=state)}
        except BaseException:
            self._file.close()
            raise
        self._parts = [(each.start, each.stop) for each in chosen.values()]
        self.head = {name: (each.header, each.stop - each.start) for name, each in chosen.items()}
        self._head = _header(self.head)
        self.size = len(self._head) + sum(stop - start for start, stop in self._parts)

    def pieces(self) -> Iterator[bytes]:
        """The document's bytes; closes the file at the end, also when it is not read to the end."""
        try:
            yield self._head
            yield from self.bodies()
        finally:
            self._file.close()

    def bodies(self) -> Iterator[bytes]:
        """The tensors' bytes alone; leaves the file open."""
        for start, stop in self._parts:
            self._file.seek(start)
            for offset in range(start, stop, PIECE_BYTES):
                yield self._file.read(min(PIECE_BYTES, stop - offset))

    def close(self) -> None:
        self._file.close()


def join(target: Path, parts: Sequence[tuple[Path, Sequence[str]]]) -> None:
    """Writes one document of the tensors named in each of several files."""
    with ExitStack() as stack, target.open("wb") as out:
        chosen = [stack.enter_context(closing(Selection(path, names))) for path, names in parts]
        out.write(_header({name: each for selection in chosen for name, each in selection.head.items()}))
        for selection in chosen:
            out.writelines(selection.bodies())


def write_arrays(target: Path, arrays: Mapping[str, Any]) -> None:
    """Writes one document of NumPy's arrays, one at a time."""
    head: dict[str, tuple[dict[str, Any], int]] = {
        name: ({"dtype": DTYPES[array.dtype.name], "shape": list(array.shape)}, array.nbytes)
        for name, array in arrays.items()
    }
    with target.open("wb") as out:
        out.write(_header(head))
        for array in arrays.values():
            out.write(array.data if array.flags.c_contiguous else array.tobytes())


def _chosen(entries: Iterable[str], names: Sequence[str] | None, *, state: bool) -> list[str]:
    if names is None:
        return [name for name in entries if state or not name.startswith(STATE)]
    asked = set(names)
    return [*dict.fromkeys(names), *(name for name in entries if state and state_key(name) in asked)]


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


def _header(chosen: Mapping[str, tuple[dict[str, Any], int]]) -> bytes:
    """The length and the header of a document of tensors: their own headers, and their bytes."""
    document: dict[str, Any] = {}
    offset = 0
    for name, (header, size) in chosen.items():
        document[name] = {**header, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _show(kind: tuple[str, list[int]]) -> str:
    return f"{kind[0]}{kind[1]}"
