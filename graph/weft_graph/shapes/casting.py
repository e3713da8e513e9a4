"""What Cast, CastLike and BitCast have in common: the element type they ask for, and how numbers are rounded to it."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.schema import Attribute, InferContext
from weft_graph.types import DType

ROUNDING_ATTRIBUTES = {
    # Both are for float8 alone.
    "saturate": Attribute(int, default=1),
    "round_mode": Attribute(str, default="up"),
}
_ROUND_MODES = ("up", "down", "nearest")


def dtype_attribute(context: InferContext, name: str) -> DType:
    """The element type whose ONNX number the attribute is. Raises DTypeError for a number that is none of them."""
    number = as_int(context.attribute(name))
    dtype = DTYPE_OF_NUMBER.get(number)
    if dtype is None:
        known = ", ".join(f"{key} {value}" for key, value in DTYPE_OF_NUMBER.items())
        raise context.dtype_error(f"{name} is element type {number}, which is none of {known}")
    return dtype


def check_round_mode(context: InferContext) -> None:
    """Raises DTypeError unless the attribute `round_mode` is one of ONNX's."""
    mode = context.attribute("round_mode")
    if mode not in _ROUND_MODES:
        raise context.dtype_error(f"round_mode {mode!r} is none of {', '.join(_ROUND_MODES)}")
