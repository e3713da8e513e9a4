"""ONNX's tensors and types as weft's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from weft_graph.limits import Limits
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.external import ExternalFiles
from weft_graph.onnx_form.imported import Array
from weft_graph.types import DType

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
