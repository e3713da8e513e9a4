"""Tensors and value types of a file, and the files beside it that hold their bytes."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from weft_graph.dimensions import UNKNOWN_PREFIX, Dim
from weft_graph.limits import Limits
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.onnx_form.errors import Array, OnnxError, text
from weft_graph.types import DType, TensorType

# --- Elements that stand in files beside a model: found inside its folder alone, and mapped rather than read ----------


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


_BITS: Final = {DType.INT4: 4, DType.UINT4: 4, DType.FLOAT4E2M1: 4, DType.INT2: 2, DType.UINT2: 2}
"""Bits of an element in a file, where they are fewer than the byte that it takes in memory."""


def dtype_of(number: int, what: str) -> DType:
    """The element type of ONNX's number. Raises OnnxError, naming what has it, for one that weft lacks."""
    dtype = DTYPE_OF_NUMBER.get(number)
    if dtype is None:
        known = onnx.TensorProto.DataType.Name(number) if number in onnx.TensorProto.DataType.values() else number
        raise OnnxError(f"{what} has elements of type {known}, which weft's graphs do not have", node=what)
    return dtype


@dataclass(frozen=True, slots=True)
class Tensors:
    """Reads a model's tensors; `files` has those that stand outside it, None where there is no folder to look in."""

    limits: Limits
    files: ExternalFiles | None = None

    def array(self, tensor: TensorProto, what: str) -> Array:
        """The elements, C-contiguous and read-only. Raises OnnxError, naming what holds the tensor."""
        dtype = dtype_of(tensor.data_type, what)
        dims = self.dims(tensor.dims, what)
        if tensor.HasField("segment"):
            raise OnnxError(f"{what}: its tensor is in segments, which no version of ONNX defines", node=what)
        nbytes = -(-math.prod(dims) * _BITS.get(dtype, 8 * dtype.itemsize) // 8)
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._of_bytes(self._external(tensor, nbytes, what), dtype, dims, what)
        if tensor.HasField("raw_data"):
            return self._of_bytes(np.frombuffer(tensor.raw_data, dtype=np.uint8), dtype, dims, what)
        return _of_fields(tensor, dtype, dims, what)

    def dims(self, given: Iterable[int], what: str) -> tuple[int, ...]:
        """Dimensions within the limits. Raises OnnxError."""
        dims = tuple(given)
        if len(dims) > self.limits.rank:
            raise OnnxError(f"{what}: {len(dims)} dimensions, and at most {self.limits.rank} are allowed", node=what)
        if any(dim < 0 or dim > self.limits.dim for dim in dims) or math.prod(dims) > self.limits.elements:
            raise OnnxError(f"{what}: shape {list(dims)} is outside 0 to {self.limits.elements} elements", node=what)
        return dims

    def dense(self, sparse: onnx.SparseTensorProto, what: str) -> Array:
        """A sparse tensor with its zeros. Raises OnnxError where that takes more bytes than constants may."""
        values = self.array(sparse.values, what)
        places = self.array(sparse.indices, what)
        dims = self.dims(sparse.dims, what)
        size = math.prod(dims)
        if size * values.itemsize > self.limits.constant_bytes:
            raise OnnxError(f"{what}: its zeros take more than {self.limits.constant_bytes} bytes", node=what)
        if (
            values.ndim != 1
            or places.dtype != np.int64
            or places.shape not in {values.shape, (*values.shape, len(dims))}
        ):
            raise OnnxError(
                f"{what}: a sparse tensor has values (n) and int64 indices (n) or (n, rank), these are "
                f"{list(values.shape)} and {places.dtype} {list(places.shape)}",
                node=what,
            )
        bounds = size if places.ndim == 1 else np.asarray(dims)
        if np.any(places < 0) or np.any(places >= bounds):
            raise OnnxError(f"{what}: an index of its sparse tensor is outside {list(dims)}", node=what)
        array = np.zeros(dims, dtype=values.dtype)
        if places.ndim == 1:
            array.reshape(-1)[places] = values
        else:
            array[tuple(places.T)] = values
        return _finished(array)

    def _external(self, tensor: TensorProto, nbytes: int, what: str) -> Array:
        if self.files is None:
            raise OnnxError(
                f"{what}: its elements are in a file of their own, and the model was not given with its folder",
                node=what,
            )
        return self.files.bytes_of(tensor, nbytes, what)

    def _of_bytes(self, data: Array, dtype: DType, dims: tuple[int, ...], what: str) -> Array:
        size = math.prod(dims)
        bits = _BITS.get(dtype, 8 * dtype.itemsize)
        if data.nbytes != -(-size * bits // 8):
            raise OnnxError(
                f"{what}: {dtype}{list(dims)} takes {-(-size * bits // 8)} bytes, and there are {data.nbytes}",
                node=what,
            )
        if bits < 8:
            return _finished(_unpacked(data, bits, size).astype(np.uint8).view(dtype.numpy).reshape(dims))
        if dtype is DType.BOOL:
            return _finished((data != 0).reshape(dims))
        array = data.view(dtype.numpy) if data.ctypes.data % dtype.itemsize == 0 else _aligned(data, dtype)
        return _finished(array.reshape(dims))


def _aligned(data: Array, dtype: DType) -> Array:
    return np.frombuffer(data.tobytes(), dtype=dtype.numpy)


def _unpacked(data: Array, bits: int, size: int) -> Array:
    """Elements of 2 or 4 bits, the lowest bits first; each in the low bits of a byte, whose high bits extend it."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    pieces: Array = (data[:, None] >> shifts) & ((1 << bits) - 1)
    return pieces.reshape(-1)[:size]


def _of_fields(tensor: TensorProto, dtype: DType, dims: tuple[int, ...], what: str) -> Array:
    """Elements in the field of their type. Their count is looked at before anything is made of them."""
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    count = len(getattr(tensor, field))
    size = math.prod(dims)
    bits = _BITS.get(dtype, 8)
    if count != -(-size * bits // 8):
        raise OnnxError(f"{what}: {dtype}{list(dims)} takes {size} elements, and {field} has {count}", node=what)
    try:
        return _finished(np.array(numpy_helper.to_array(tensor), dtype=dtype.numpy, order="C"))
    except (ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"{what}: its tensor cannot be read: {error}", node=what) from None


def _finished(array: Array) -> Array:
    array = np.asarray(array, order="C")
    array.flags.writeable = False
    return array


# --- What a file says of its values' types ----------------------------------------------------------------------------


_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def declared_types(values: Iterable[onnx.ValueInfoProto], names: Mapping[str, str]) -> dict[str, TensorType]:
    """Types by the names that values have in weft's graph, of those whose rank the file says. It is not to be trusted:
    a dimension that is no number is unknown, and what inference finds goes before."""
    found: dict[str, TensorType] = {}
    for value in values:
        name = names.get(text(value.name, "the name of a value"))
        tensor = value.type.tensor_type
        if name is None or not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        dtype = DTYPE_OF_NUMBER.get(tensor.elem_type)
        if dtype is not None:
            found[name] = TensorType(dtype, tuple(_dim(dim, name, place) for place, dim in enumerate(tensor.shape.dim)))
    return found


def _dim(dim: onnx.TensorShapeProto.Dimension, name: str, place: int) -> Dim:
    is_number = dim.HasField("dim_value") and dim.dim_value >= 0
    return dim.dim_value if is_number else f"{UNKNOWN_PREFIX}{word_of(name)}_{place}"


def element_type(value: onnx.ValueInfoProto, what: str) -> DType:
    """The element type of an input that is a tensor, or of the items of one that is a sequence or optional.

    Raises OnnxError for what is neither.
    """
    type_ = value.type
    while type_.WhichOneof("value") in {"sequence_type", "optional_type"}:
        type_ = type_.sequence_type.elem_type if type_.HasField("sequence_type") else type_.optional_type.elem_type
    if type_.WhichOneof("value") != "tensor_type":
        raise OnnxError(f"{what} is of {type_.WhichOneof('value') or 'no type'}, and weft's graphs have tensors alone")
    return dtype_of(type_.tensor_type.elem_type, what)


def is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type"))


def file_dims(value: onnx.ValueInfoProto, what: str) -> list[int | str] | None:
    """The dimensions of an input: numbers, the file's names, '' for one of which it says nothing; None without shape.

    Raises OnnxError for a dimension below 0.
    """
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str] = []
    for place, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise OnnxError(f"{what}: dimension {place} is {dim.dim_value}, which is below 0", node=value.name)
            dims.append(dim.dim_value)
        else:
            dims.append(text(dim.dim_param, f"{what}: dimension {place}"))
    return dims


def word_of(name: str) -> str:
    """The name as a plain word, which is what a dimension's name must be."""
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return word if _WORD.fullmatch(word) else f"_{word}"
