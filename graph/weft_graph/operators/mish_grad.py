"""MishGrad(gradient, X): gradient * (t + X * (1 - t^2) * sigmoid(X)), where t = tanh(ln(exp(X) + 1))."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="MishGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
