"""PowBaseGrad(gradient, base, exponent): gradient * exponent * base^(exponent - 1), 0 where exponent is 0.

It has the shape of `gradient` and the element type of the base.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, NUMBERS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(1).dtype, context.input(0).shape),)


SCHEMA = OpSchema(
    op_type="PowBaseGrad",
    inputs=(required("gradient", FLOATS), required("base", FLOATS), required("exponent", NUMBERS)),
    outputs=(required("base_gradient", FLOATS),),
    infer=_infer,
    domain=WEFT_DOMAIN,
)
