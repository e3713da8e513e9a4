"""Arrays and numbers of Python as constants of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.declared import declared_name, element_type
from weft.records import ConstantRecord, Label
from weft_graph.types import DType, TensorType


def constant_record(value: Any, dtype: DType | str | None = None, name: str | None = None) -> ConstantRecord:
    """The constant of this value, which is copied; Python's floats become float32 unless `dtype` says otherwise.

    Raises DTypeError for an element type that tensors cannot have, ArgumentError for a name that is none.
    """
    array = np.asarray(value)
    if dtype is None and array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        dtype = DType.FLOAT32
    wanted = element_type(dtype if dtype is not None else array.dtype.name, name or "constant")
    frozen = np.array(array, dtype=wanted.numpy, order="C", copy=True)
    frozen.flags.writeable = False
    label = Label(declared_name(name), given=True) if name is not None else None
    return ConstantRecord(label, (TensorType(wanted, frozen.shape),), frozen)
