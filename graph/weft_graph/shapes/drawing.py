"""What operators of random numbers have in common: their attributes, and the types that these ask for."""

from __future__ import annotations

import math

from weft_graph.attributes import as_float, as_ints
from weft_graph.formals import FLOATS
from weft_graph.schema import Attribute, InferContext
from weft_graph.shapes.casting import dtype_attribute
from weft_graph.types import DType, TensorType

SEED = {"seed": Attribute(float)}
"""Takes the job's place, for runs that are to draw the same in any job."""
UNIFORM = {"low": Attribute(float, default=0.0), "high": Attribute(float, default=1.0)}
NORMAL = {"mean": Attribute(float, default=0.0), "scale": Attribute(float, default=1.0)}


def drawn_dtype(context: InferContext, like: DType, allowed: frozenset[DType] = FLOATS) -> DType:
    """The attribute `dtype`, or the input's type. Raises DTypeError for a type that nothing is drawn in."""
    dtype = like if context.attribute("dtype") is None else dtype_attribute(context, "dtype")
    if dtype not in allowed:
        raise context.dtype_error(f"numbers are drawn as {', '.join(sorted(allowed))}, and not as {dtype}")
    return dtype


def check_numbers(context: InferContext, *names: str) -> None:
    """Raises ShapeError unless the attributes are finite, and a scale not below 0."""
    for name in names:
        number = as_float(context.attribute(name))
        if not math.isfinite(number) or (name == "scale" and number < 0):
            raise context.shape_error(f"{name} {number} must be finite, and a scale not below 0")


def infer_drawn(context: InferContext) -> tuple[TensorType, ...]:
    """Numbers in the attribute `shape`, float32 where `dtype` says no other. Raises ShapeError, DTypeError."""
    shape = as_ints(context.attribute("shape"))
    if min(shape, default=0) < 0:
        raise context.shape_error(f"shape {list(shape)} has a dimension below 0")
    return (TensorType(drawn_dtype(context, DType.FLOAT32), shape),)
