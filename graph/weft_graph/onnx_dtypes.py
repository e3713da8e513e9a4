"""ONNX's numbers for element types (`TensorProto.DataType` in onnx.proto), for those that weft has."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from weft_graph.types import DType

DTYPE_OF_NUMBER: Final = MappingProxyType(
    {
        1: DType.FLOAT32,
        2: DType.UINT8,
        3: DType.INT8,
        6: DType.INT32,
        7: DType.INT64,
        9: DType.BOOL,
        10: DType.FLOAT16,
        11: DType.FLOAT64,
    }
)
NUMBER_OF_DTYPE: Final = MappingProxyType({dtype: number for number, dtype in DTYPE_OF_NUMBER.items()})
