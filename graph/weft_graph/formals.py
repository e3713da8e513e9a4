"""The sets of element types that operators' formal inputs and outputs take."""

from __future__ import annotations

from typing import Final

from weft_graph.schema import Formal
from weft_graph.types import DType

FLOATS: Final = frozenset({DType.FLOAT16, DType.FLOAT32, DType.FLOAT64})
SIGNED_INTEGERS: Final = frozenset({DType.INT8, DType.INT32, DType.INT64})
INTEGERS: Final = SIGNED_INTEGERS | {DType.UINT8}
INDICES: Final = frozenset({DType.INT32, DType.INT64})
NUMBERS: Final = FLOATS | INTEGERS
SIGNED: Final = FLOATS | SIGNED_INTEGERS
BOOLEANS: Final = frozenset({DType.BOOL})
ANY: Final = NUMBERS | BOOLEANS
INT64: Final = frozenset({DType.INT64})


def required(name: str, dtypes: frozenset[DType]) -> Formal:
    """A formal that a node must have."""
    return Formal(name, dtypes)


def optional(name: str, dtypes: frozenset[DType]) -> Formal:
    """A formal that a node may leave out."""
    return Formal(name, dtypes, optional=True)


def variadic(name: str, dtypes: frozenset[DType]) -> Formal:
    """The last formal, one or more times."""
    return Formal(name, dtypes, variadic=True)
