"""LogSoftmaxGrad(gradient, output): gradient - e^output * sum(gradient) along `axis`."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="LogSoftmaxGrad",
    inputs=(required("gradient", FLOATS), required("output", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_unary,
    attributes={"axis": Attribute(int, default=-1)},
    domain=WEFT_DOMAIN,
    in_place=(0, 1),
)
