"""DropoutGrad(gradient, mask, ratio, training_mode): the gradient where the mask is set, scaled as Dropout scaled."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="DropoutGrad",
    inputs=(
        required("gradient", FLOATS),
        required("mask", BOOLEANS),
        optional("ratio", FLOATS),
        optional("training_mode", BOOLEANS),
    ),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
)
