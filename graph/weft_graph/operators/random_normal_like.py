"""RandomNormalLike: numbers of a normal distribution of that `mean` and standard deviation `scale`,
in the shape of the input. No gradient flows through it.
"""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, FLOATS, NUMBERS, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.drawing import NORMAL, SEED, check_numbers, drawn_dtype
from weft_graph.shapes.flow import flat
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_numbers(context, "mean", "scale")
    data = context.input(0)
    return (TensorType(drawn_dtype(context, data.dtype), data.shape),)


SCHEMA = OpSchema(
    op_type="RandomNormalLike",
    inputs=(required("input", NUMBERS | BOOLEANS),),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=flat,
    attributes={**NORMAL, **SEED, "dtype": Attribute(int)},
    random=True,
)
