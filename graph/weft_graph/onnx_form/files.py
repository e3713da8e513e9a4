"""Models as files and as bytes that somebody sent."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no stubs

from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.external import ExternalFiles
from weft_graph.onnx_form.imported import Imported, ReadOptions
from weft_graph.onnx_form.reader import read_model
from weft_graph.onnx_form.wire import MOST_FIELDS, check_fields

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
