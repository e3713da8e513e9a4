"""DFTGrad(gradient, input, dft_length, axis): the gradient of DFT's input; DFT's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.dft import DFT_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import transformed
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="DFTGrad",
    inputs=(
        required("gradient", FLOATS),
        required("input", FLOATS),
        optional("dft_length", INDICES),
        optional("axis", INT64),
    ),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    attributes=DFT_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=transformed,
)
