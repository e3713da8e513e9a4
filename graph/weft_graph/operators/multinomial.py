"""Multinomial: for each row (batch, classes) of logarithms of weights `sample_size` classes, drawn by their weights.

A function of steps, without a gradient.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, INDICES, required
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.drawing import SEED, drawn_dtype
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, count = context.input(0), as_int(context.attribute("sample_size"))
    if data.rank != 2 or data.shape[1] == 0:
        raise context.shape_error(f"the input must be (batch, classes) with at least one class, got {data}")
    if count < 0:
        raise context.shape_error(f"sample_size {count} is below 0")
    return (TensorType(drawn_dtype(context, DType.INT32, INDICES), (data.shape[0], count)),)


SCHEMA = OpSchema(
    op_type="Multinomial",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", INDICES),),
    infer=_infer,
    attributes={
        **SEED,
        "dtype": Attribute(int, default=NUMBER_OF_DTYPE[DType.INT32]),
        "sample_size": Attribute(int, default=1),
    },
    random=True,
)
