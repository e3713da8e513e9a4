"""LRNGrad(gradient, X): the gradient of X; LRN's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="LRNGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer,
    attributes={
        "alpha": Attribute(float, default=1e-4),
        "beta": Attribute(float, default=0.75),
        "bias": Attribute(float, default=1.0),
        "size": Attribute(int, required=True),
    },
    domain=WEFT_DOMAIN,
)
