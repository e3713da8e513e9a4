"""ONNX models in files and archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no stubs

from weft_graph.onnx_form.errors import Imported, OnnxError, ReadOptions
from weft_graph.onnx_form.reader import read_model
from weft_graph.onnx_form.tensors import ExternalFiles

# --- Looks at a protobuf document before it is parsed: how many fields it has, which is what parsing it costs ---------
# An empty message takes two bytes in a file and about a hundred in memory, so a file's size bounds nothing.


MOST_FIELDS: Final = 1 << 21
"""Fields of all messages together. A model of 65,536 nodes as PyTorch exports them has about as many."""

_MOST_DEPTH: Final = 100
"""Messages inside messages: as many as protobuf's own parsers take."""

_MOST_NUMBER: Final = (1 << 29) - 1
"""Of a field; the least is 1."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def check_fields(data: bytes, descriptor: Any, most: int) -> None:
    """Raises OnnxError where the document, a message of that descriptor, is broken or has more fields than `most`."""
    count = 0
    open_messages = [(0, len(data), descriptor, 0)]
    while open_messages:
        place, end, message, depth = open_messages.pop()
        while place < end:
            count += 1
            if count > most:
                raise OnnxError(f"the file has more than {most} fields")
            began = place
            tag, place = _varint(data, place, end)
            if not 0 < tag >> 3 <= _MOST_NUMBER:
                raise _broken(began)
            kind = tag & 7
            if kind == _VARINT:
                _, place = _varint(data, place, end)
            elif kind == _FIXED64:
                place += 8
            elif kind == _FIXED32:
                place += 4
            elif kind == _LENGTH:
                length, place = _varint(data, place, end)
                field = message.fields_by_number.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    if depth >= _MOST_DEPTH:
                        raise OnnxError(f"the file has messages nested more than {_MOST_DEPTH} deep")
                    open_messages.append((place, min(place + length, end), field.message_type, depth + 1))
                place += length
            else:
                raise _broken(place)
            if place > end:
                raise _broken(end)


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while place < end and shift < 64:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise _broken(place)


def _broken(place: int) -> OnnxError:
    return OnnxError(f"the file is no ONNX model: it breaks off or is damaged at byte {place}")


MOST_BYTES: Final = 1 << 28
"""What a model that is sent may have; parsed and read it takes about three times as much."""

_MOST_FILE_BYTES: Final = (1 << 31) - 1
"""What protobuf holds in one document; larger models have their elements in files of their own."""


def read_bytes(data: bytes, options: ReadOptions | None = None, *, most_bytes: int = MOST_BYTES) -> Imported:
    """A model from the bytes of its file, which nobody vouches for; elements in other files are refused.

    Raises OnnxError and its kin, which name what is wrong.
    """
    return read_model(_parsed(data, most_bytes), options)


def read_file(path: Path | str, options: ReadOptions | None = None) -> Imported:
    """A model from its file, and elements from files in the same folder, which are mapped and not read.

    The arrays of `values` may lie in those files: whoever changes them changes the values. Raises OnnxError and its
    kin, which name what is wrong.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OnnxError(f"{path}: the file cannot be read: {error.strerror}") from None
    try:
        model = _parsed(data, _MOST_FILE_BYTES)
    except OnnxError as error:
        raise OnnxError(f"{path}: {error.message}", node=error.node) from None
    return read_model(model, options, ExternalFiles(path.parent))


def _parsed(data: bytes, most_bytes: int) -> onnx.ModelProto:
    if len(data) > most_bytes:
        raise OnnxError(f"the model has {len(data)} bytes, and at most {most_bytes} are allowed")
    check_fields(data, onnx.ModelProto.DESCRIPTOR, MOST_FIELDS)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise OnnxError(f"the file is no ONNX model: {error}") from None
    return model
