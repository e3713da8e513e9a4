"""PowExponentGrad(gradient, base, exponent, output): gradient * output * ln(base), 0 where base is 0.

It has the shape of `gradient` and the element type of the exponent.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, NUMBERS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(2).dtype, context.input(0).shape),)


SCHEMA = OpSchema(
    op_type="PowExponentGrad",
    inputs=(
        required("gradient", FLOATS),
        required("base", FLOATS),
        required("exponent", NUMBERS),
        required("output", FLOATS),
    ),
    outputs=(required("exponent_gradient", FLOATS),),
    infer=_infer,
    domain=WEFT_DOMAIN,
)
