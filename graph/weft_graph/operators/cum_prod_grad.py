"""CumProdGrad(gradient, x, axis): the gradient of x; CumProd's attributes. Zeros divide nothing."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="CumProdGrad",
    inputs=(required("gradient", FLOATS), required("x", FLOATS), required("axis", INDICES)),
    outputs=(required("x_gradient", FLOATS),),
    infer=_infer,
    attributes={"exclusive": Attribute(int, default=0), "reverse": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
)
