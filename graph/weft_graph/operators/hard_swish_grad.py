"""HardSwishGrad(gradient, X): gradient * (X / 3 + 1 / 2) where X is less than 3 from 0, the gradient above, 0 below."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="HardSwishGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
