"""Types of the window functions and of MelWeightMatrix, whose sizes are values."""

from __future__ import annotations

from weft_graph.dimensions.dims import Dim, agree, product
from weft_graph.formals import NUMBERS
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, InferContext
from weft_graph.shapes.casting import dtype_attribute
from weft_graph.types import DType, TensorType

OUTPUT_DATATYPE = {"output_datatype": Attribute(int, default=NUMBER_OF_DTYPE[DType.FLOAT32])}
WINDOW_ATTRIBUTES = {**OUTPUT_DATATYPE, "periodic": Attribute(int, default=1)}


def output_dtype(context: InferContext) -> DType:
    """The attribute `output_datatype`. Raises DTypeError unless it is a type of numbers."""
    dtype = dtype_attribute(context, "output_datatype")
    if dtype not in NUMBERS:
        raise context.dtype_error(f"output_datatype is {dtype}, which is none of {', '.join(sorted(NUMBERS))}")
    return dtype


def one_number(context: InferContext, index: int, name: str) -> int | None:
    """Input `index`, one whole number, where it is known. Raises ShapeError where it is several, or below 0."""
    if not agree(product(context.input(index).shape), 1):
        raise context.shape_error(f"{name} {context.input(index)} must be one number")
    known = context.constant(index)
    if known is None:
        return None
    number = int(known.reshape(-1)[0])
    if number < 0:
        raise context.shape_error(f"{name} {number} is below 0")
    return number


def infer_window(context: InferContext) -> tuple[TensorType, ...]:
    """As many numbers as input 0 says."""
    size = one_number(context, 0, "size")
    count: Dim | None = size
    if count is None:
        dims = context.dims(0)
        count = context.unknown() if dims is None else dims[0]
    return (TensorType(output_dtype(context), (count,)),)
