"""Tensor types: an element type and a shape whose dimensions are numbers or names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import ml_dtypes  # noqa: F401  # NumPy learns the names of the element types that it does not have itself
import numpy as np

from weft_graph.dimensions import Dim, agree, bound, is_unknown

Shape = tuple[Dim, ...]

BATCH = "batch"
"""The symbolic dimension that the data pipeline fills; it differs between slots and at the end of a pass."""


class DType(StrEnum):
    """Element types, named as NumPy and ml_dtypes name them; ONNX's numbers are in `onnx_dtypes`."""

    BOOL = "bool"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0 = "float8_e8m0fnu"
    FLOAT4E2M1 = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    @property
    def itemsize(self) -> int:
        """Bytes an element takes."""
        return self.numpy.itemsize

    @property
    def bits(self) -> int:
        """Bits an element is told apart by; those below a byte lie in the low bits of a byte of their own."""
        return _SUB_BYTES.get(self, 8 * self.itemsize)

    @property
    def is_float(self) -> bool:
        """Whether gradients flow through values of this type."""
        return self in _FLOATS

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        """The same type as NumPy's dtype, little-endian where that matters."""
        return np.dtype(self.value).newbyteorder("<")


_SUB_BYTES = {DType.INT4: 4, DType.UINT4: 4, DType.FLOAT4E2M1: 4, DType.INT2: 2, DType.UINT2: 2}
_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value: `dtype`, and `shape` with an int or a symbolic name for each dimension."""

    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def is_known(self) -> bool:
        """Whether every dimension is a number or named by the inputs: none is known only once the values are."""
        return not any(map(is_unknown, self.shape))

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as numbers. Raises ValueError while a dimension is symbolic."""
        if not self.is_static:
            raise ValueError(f"{self} has symbolic dimensions; bind them first")
        return tuple(dim for dim in self.shape if isinstance(dim, int))

    @property
    def size(self) -> int:
        """Number of elements. Raises ValueError while a dimension is symbolic."""
        return math.prod(self.static_shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def bind(self, dims: Mapping[str, int]) -> TensorType:
        """The same type with the named dimensions filled, also in products (`4*batch`); other names stay symbolic."""
        return TensorType(self.dtype, tuple(bound(d, dims) if isinstance(d, str) else d for d in self.shape))

    def agrees_with(self, other: TensorType) -> bool:
        """Whether one value could be of both types: the same, but for dimensions that are known only at run time."""
        return (
            self.dtype == other.dtype
            and self.rank == other.rank
            and all(agree(a, b) for a, b in zip(self.shape, other.shape, strict=True))
        )

    def __str__(self) -> str:
        return _text(self.dtype, self.shape)


def array_type(array: np.ndarray) -> TensorType:
    """The type of an array's elements and shape, whatever their byte order. Raises ValueError for other dtypes."""
    return TensorType(DType(array.dtype.name), tuple(array.shape))


def array_text(array: np.ndarray) -> str:
    """An array's type as TensorType shows it, for messages: also of a dtype or byte order that no graph has."""
    return _text(str(array.dtype), array.shape)


def _text(dtype: str, shape: Shape) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
