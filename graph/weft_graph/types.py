"""Tensor types: an element type and a shape whose dimensions are numbers or names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from weft_graph.shapes.dims import Dim, bound

Shape = tuple[Dim, ...]

BATCH = "batch"
"""The symbolic dimension that the data pipeline fills; it differs between slots and at the end of a pass."""


class DType(StrEnum):
    """Element types, named as NumPy names them; ONNX's numbers are in `onnx_dtypes`."""

    BOOL = "bool"
    UINT8 = "uint8"
    INT8 = "int8"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def itemsize(self) -> int:
        """Bytes an element takes."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether gradients flow through values of this type."""
        return self in _FLOATS

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The same type as NumPy's dtype, little-endian where that matters."""
        return np.dtype(self.value).newbyteorder("<")


_FLOATS = frozenset({DType.FLOAT16, DType.FLOAT32, DType.FLOAT64})


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
