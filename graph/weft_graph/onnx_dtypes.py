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
        4: DType.UINT16,
        5: DType.INT16,
        6: DType.INT32,
        7: DType.INT64,
        9: DType.BOOL,
        10: DType.FLOAT16,
        11: DType.FLOAT64,
        12: DType.UINT32,
        13: DType.UINT64,
        16: DType.BFLOAT16,
        17: DType.FLOAT8E4M3FN,
        18: DType.FLOAT8E4M3FNUZ,
        19: DType.FLOAT8E5M2,
        20: DType.FLOAT8E5M2FNUZ,
        21: DType.UINT4,
        22: DType.INT4,
        23: DType.FLOAT4E2M1,
        24: DType.FLOAT8E8M0,
        25: DType.UINT2,
        26: DType.INT2,
    }
)
NUMBER_OF_DTYPE: Final = MappingProxyType({dtype: number for number, dtype in DTYPE_OF_NUMBER.items()})
