"""LpPoolGrad(gradient, X, Y): the gradient of X; LpPool's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.lp_pool import LP_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import windowed_gradient
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="LpPoolGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("Y", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer,
    attributes=LP_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=windowed_gradient,
)
