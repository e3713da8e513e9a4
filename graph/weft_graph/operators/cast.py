"""Cast: the elements as another type, `to` by ONNX's number."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, required
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, number = context.input(0), as_int(context.attribute("to"))
    dtype = DTYPE_OF_NUMBER.get(number)
    if dtype is None:
        known = ", ".join(f"{key} {value}" for key, value in DTYPE_OF_NUMBER.items())
        raise context.dtype_error(f"to is element type {number}, which is none of {known}")
    return (TensorType(dtype, data.shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    dtype = context.type_of(context.input(0)).dtype
    if not dtype.is_float:
        return (None,)
    return context.emit("Cast", (incoming(context),), {"to": NUMBER_OF_DTYPE[dtype]})


SCHEMA = OpSchema(
    op_type="Cast",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "to": Attribute(int, required=True),
        # Both are for float8 alone, which weft does not have; a file may carry them.
        "saturate": Attribute(int, default=1),
        "round_mode": Attribute(str, default="up"),
    },
    pointwise=True,
)
