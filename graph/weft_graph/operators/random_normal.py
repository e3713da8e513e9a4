"""RandomNormal: numbers of a normal distribution of that `mean` and standard deviation `scale`,
in `shape`. Every batch of a step draws the same.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.drawing import NORMAL, SEED, check_numbers, infer_drawn
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_numbers(context, "mean", "scale")
    return infer_drawn(context)


SCHEMA = OpSchema(
    op_type="RandomNormal",
    inputs=(),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    attributes={
        **NORMAL,
        **SEED,
        "dtype": Attribute(int, default=NUMBER_OF_DTYPE[DType.FLOAT32]),
        "shape": Attribute(tuple, required=True),
    },
    random=True,
)
