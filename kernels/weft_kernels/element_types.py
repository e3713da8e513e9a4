"""What element types are to bodies: which are floats, which are computed in float32, and their ranges.

bfloat16 and narrower types are ml_dtypes', which NumPy knows as `kind` V: ask here and not by the kind.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from weft_graph.formals import FLOATS, FLOATS8
from weft_graph.types import DType

Dtype = np.dtype[Any]

HALVES: Final = frozenset({"float16", "bfloat16"})
"""Element types whose sums and functions are computed in float32."""

_FLOAT_NAMES: Final = frozenset(dtype.value for dtype in FLOATS)


def is_float(dtype: Dtype) -> bool:
    """Whether it is one of the types that gradients have: float16, bfloat16, float32 or float64."""
    return dtype.name in _FLOAT_NAMES


def is_half(dtype: Dtype) -> bool:
    """Whether it is float16 or bfloat16, whose sums and functions are computed in float32 and rounded once."""
    return dtype.itemsize == 2 and dtype.name in HALVES  # NumPy makes a type's name anew each time it is asked.


def computed_in(dtype: Dtype) -> Dtype:
    """The type that sums and functions of elements are computed in: float32 for the halves, else the type itself."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def statistics_dtype(xp: Any, data: np.ndarray[Any, Dtype]) -> Dtype:
    """The type that statistics are summed in: the data's, but never narrower than float32."""
    return xp.promote_types(data.dtype, xp.float32)  # type: ignore[no-any-return]  # xp is Any


def range_of(dtype: DType) -> tuple[float, float]:
    """The lowest and the highest finite number of the type; whole numbers for integers."""
    if dtype is DType.BOOL:
        return 0, 1
    if dtype.is_float or dtype in FLOATS8 or dtype is DType.FLOAT4E2M1:
        limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]  # ml_dtypes says no types
        return float(limits.min), float(limits.max)
    whole = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]  # ml_dtypes says no types
    return int(whole.min), int(whole.max)
