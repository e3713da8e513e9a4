"""TanhGrad(gradient, output): gradient * (1 - output^2)."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="TanhGrad",
    inputs=(required("gradient", FLOATS), required("output", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
