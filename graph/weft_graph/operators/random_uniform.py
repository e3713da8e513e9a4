"""RandomUniform: numbers from `low` to before `high`, all equally likely,
in `shape`. Every batch of a step draws the same.
"""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.formals import FLOATS, required
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.drawing import SEED, UNIFORM, check_numbers, drawn_dtype
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_numbers(context, "low", "high")
    shape = as_ints(context.attribute("shape"))
    if min(shape, default=0) < 0:
        raise context.shape_error(f"shape {list(shape)} has a dimension below 0")
    return (TensorType(drawn_dtype(context, DType.FLOAT32), shape),)


SCHEMA = OpSchema(
    op_type="RandomUniform",
    inputs=(),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    attributes={
        **UNIFORM,
        **SEED,
        "dtype": Attribute(int, default=NUMBER_OF_DTYPE[DType.FLOAT32]),
        "shape": Attribute(tuple, required=True),
    },
    random=True,
)
