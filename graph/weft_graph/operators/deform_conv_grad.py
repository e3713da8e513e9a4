"""DeformConvGrad(gradient, X, W, offset, mask): the gradients of X, W, offset and mask; DeformConv's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.deform_conv import DEFORM_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import convolution_gradient
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    mask = context.optional_input(4)
    return (context.input(1), context.input(2), context.input(3), *(() if mask is None else (mask,)))


SCHEMA = OpSchema(
    op_type="DeformConvGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("W", FLOATS),
        required("offset", FLOATS),
        optional("mask", FLOATS),
    ),
    outputs=(
        required("X_gradient", FLOATS),
        optional("W_gradient", FLOATS),
        optional("offset_gradient", FLOATS),
        optional("mask_gradient", FLOATS),
    ),
    infer=_infer,
    attributes=DEFORM_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=convolution_gradient,
)
