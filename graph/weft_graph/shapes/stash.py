"""The type that normalizations compute their statistics in: ONNX's `stash_type`."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.schema import InferContext
from weft_graph.types import DType


def stash_dtype(context: InferContext) -> DType:
    """What statistics are given in: the attribute's type, and float64 for an input of that type.

    They are computed in float32 at least, whatever they are given in. Raises DTypeError for a number of no float type.
    """
    number = as_int(context.attribute("stash_type"))
    stash = DTYPE_OF_NUMBER.get(number)
    if stash is None or not stash.is_float:
        raise context.dtype_error(f"stash_type {number} is no float type: 1, 10, 11 or 16")
    return DType.FLOAT64 if context.input(0).dtype == DType.FLOAT64 else stash


def check_epsilon(context: InferContext, epsilon: float) -> None:
    """Raises ShapeError where it is infinite, no number or below 0."""
    if not 0 <= epsilon < float("inf"):
        raise context.shape_error(f"epsilon {epsilon} must be finite and not below 0")
