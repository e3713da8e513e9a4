"""The sets of element types that operators' formal inputs and outputs take."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from weft_graph.schema import Formal, Setting
from weft_graph.types import DType

FLOATS: Final = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
SIGNED_INTEGERS: Final = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})
UNSIGNED_INTEGERS: Final = frozenset({DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64})
INTEGERS: Final = SIGNED_INTEGERS | UNSIGNED_INTEGERS
FLOATS8: Final = frozenset(
    {DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ, DType.FLOAT8E8M0}
)
SUB_BYTES: Final = frozenset({DType.FLOAT4E2M1, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2})
NARROW: Final = FLOATS8 | SUB_BYTES
"""What numbers are packed into; no arithmetic but Cast and quantization takes them, and no gradient flows through."""
INDICES: Final = frozenset({DType.INT32, DType.INT64})
NUMBERS: Final = FLOATS | INTEGERS
SIGNED: Final = FLOATS | SIGNED_INTEGERS
SUMMABLE: Final = FLOATS | INDICES | {DType.UINT32, DType.UINT64}
"""What ONNX multiplies and sums: no integer narrower than 32 bits, whose sums would soon leave its range."""
BOOLEANS: Final = frozenset({DType.BOOL})
ANY: Final = NUMBERS | BOOLEANS | NARROW
INT64: Final = frozenset({DType.INT64})


def required(name: str, dtypes: frozenset[DType]) -> Formal:
    """A formal that a node must have."""
    return Formal(name, dtypes)


def optional(name: str, dtypes: frozenset[DType]) -> Formal:
    """A formal that a node may leave out."""
    return Formal(name, dtypes, optional=True)


def setting(formal: Formal, kind: Setting = Setting.FIXED) -> Formal:
    """The formal, as one that says how the operator works: what a model's file has for it does not train."""
    return replace(formal, setting=kind)


def variadic(name: str, dtypes: frozenset[DType]) -> Formal:
    """The last formal, one or more times."""
    return Formal(name, dtypes, variadic=True)


def rest(name: str, dtypes: frozenset[DType]) -> Formal:
    """The last formal, none or more times; each may be of another type."""
    return Formal(name, dtypes, optional=True, variadic=True)
