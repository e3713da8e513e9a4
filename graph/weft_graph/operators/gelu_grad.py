"""GeluGrad(gradient, X): gradient * (P(X) + X * P'(X)), P as `approximate` has it; Gelu's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="GeluGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    attributes={"approximate": Attribute(str, default="none")},
    domain=WEFT_DOMAIN,
    pointwise=True,
)
