"""ONNX's tensors and types as weft's."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.imported import Array
from weft_graph.types import DType


def dtype_of(number: int, what: str) -> DType:
    """The element type of ONNX's number. Raises OnnxError, naming what has it, for one that weft lacks."""
    dtype = DTYPE_OF_NUMBER.get(number)
    if dtype is None:
        known = onnx.TensorProto.DataType.Name(number) if number in onnx.TensorProto.DataType.values() else number
        raise OnnxError(f"{what} has elements of type {known}, which weft's graphs do not have", node=what)
    return dtype


def array_of(tensor: onnx.TensorProto, what: str) -> Array:
    """The tensor's elements, C-contiguous and read-only. Raises OnnxError, naming what holds it."""
    dtype = dtype_of(tensor.data_type, what)
    try:
        array = np.array(numpy_helper.to_array(tensor), dtype=dtype.numpy, order="C")
    except (ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"{what}: its tensor cannot be read: {error}", node=what) from None
    array.flags.writeable = False
    return array
