"""Elements that stand in files beside a model: found inside its folder alone, and mapped rather than read."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from onnx import TensorProto

from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.imported import Array
from weft_graph.onnx_form.text import text


class ExternalFiles:
    """The files of a model's folder. No path leads out of it, by `..`, by a root or by a link."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._maps: dict[str, Array] = {}

    def bytes_of(self, tensor: TensorProto, nbytes: int, what: str) -> Array:
        """The tensor's `nbytes` bytes, mapped read-only. Raises OnnxError, naming what holds the tensor."""
        entries = {text(e.key, f"{what}: a key of its place"): text(e.value, what) for e in tensor.external_data}
        location = entries.get("location", "")
        offset = _number(entries.get("offset", "0"), "offset", what)
        length = _number(entries.get("length", str(nbytes)), "length", what)
        if length != nbytes:
            raise OnnxError(f"{what}: it takes {nbytes} bytes, and its place says {length}", node=what)
        data = self._mapped(location, what)
        if offset + nbytes > data.size:
            raise OnnxError(
                f"{what}: bytes {offset} to {offset + nbytes} of {location!r} are asked for, which has {data.size}",
                node=what,
            )
        return data[offset : offset + nbytes]

    def _mapped(self, location: str, what: str) -> Array:
        known = self._maps.get(location)
        if known is None:
            path = self._path(location, what)
            empty = path.stat().st_size == 0
            known = np.zeros(0, np.uint8) if empty else np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
            self._maps[location] = known
        return known

    def _path(self, location: str, what: str) -> Path:
        parts = PurePosixPath(location).parts
        is_rooted = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor != ""
        if not parts or is_rooted or ".." in parts or "\\" in location or "\0" in location:
            raise OnnxError(f"{what}: {location!r} is no path inside the model's folder", node=what)
        try:
            path = (self._folder / location).resolve(strict=True)
            mode = path.stat().st_mode
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its links go in a circle"
            raise OnnxError(f"{what}: its file {location!r} cannot be read: {reason}", node=what) from None
        if not path.is_relative_to(self._folder):
            raise OnnxError(f"{what}: {location!r} is a link that leads out of the model's folder", node=what)
        if not stat.S_ISREG(mode):
            raise OnnxError(f"{what}: {location!r} is no file", node=what)
        return path


def _number(value: str, field: str, what: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= 19):
        raise OnnxError(f"{what}: {field} {value[:40]!r} of its place is no count of bytes", node=what)
    return int(value)
