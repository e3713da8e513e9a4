"""weft's arrays as ONNX's tensors."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx

from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.onnx_form.imported import Array
from weft_graph.types import DType, array_type

_BITS: Final = {DType.INT4: 4, DType.UINT4: 4, DType.FLOAT4E2M1: 4, DType.INT2: 2, DType.UINT2: 2}


def tensor_proto(name: str, array: Array) -> onnx.TensorProto:
    """The array under that name, its elements in the message."""
    tensor = empty_tensor(name, array)
    tensor.raw_data = raw_bytes(array)
    return tensor


def empty_tensor(name: str, array: Array) -> onnx.TensorProto:
    """Name, type and shape alone."""
    type_ = array_type(array)
    return onnx.TensorProto(name=name, data_type=NUMBER_OF_DTYPE[type_.dtype], dims=type_.static_shape)


def raw_bytes(array: Array) -> bytes:
    """The elements, little-endian; those of less than a byte are packed, the first in the lowest bits."""
    dtype = array_type(array).dtype
    bits = _BITS.get(dtype)
    if bits is None:
        return np.ascontiguousarray(array, dtype=dtype.numpy).tobytes()
    per_byte = 8 // bits
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, dtype=np.uint8)
    padded[: codes.size] = codes
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return bytes(packed.astype(np.uint8))
