"""What a user declares of a value: its name, element type and shape, and constants; checked where they are written."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from weft.errors import ArgumentError
from weft.records import ConstantRecord, Label
from weft_graph.errors import DTypeError, ShapeError
from weft_graph.types import DType, Shape, TensorType


def element_type(dtype: DType | str, owner: str) -> DType:
    """The element type of that name. Raises DTypeError, which says who asked for it."""
    try:
        return DType(dtype)
    except ValueError:
        allowed = ", ".join(DType)
        raise DTypeError(f"{owner!r}: there is no element type {dtype!r}; there are {allowed}", node=owner) from None


def declared_shape(shape: Sequence[int | str], owner: str) -> Shape:
    dims: list[Any] = []
    for dim in (shape,) if isinstance(shape, int | str) or not isinstance(shape, Iterable) else shape:
        if isinstance(dim, str):
            dims.append(declared_name(dim))
            continue
        try:
            dims.append(operator.index(dim))
        except TypeError:
            raise ArgumentError(
                f"{owner!r}: {dim!r} in shape {shape!r} is no dimension; one is a number, or a name such as weft.BATCH"
            ) from None
        if dims[-1] < 0:
            raise ShapeError(
                f"{owner!r}: dimension {dim} of shape {tuple(shape)} is negative; "
                "one that varies has a name, such as weft.BATCH",
                node=owner,
            )
    return tuple(dims)


def declared_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"a name is a string that is not empty, not {name!r}")
    return name


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
