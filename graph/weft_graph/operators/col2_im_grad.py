"""Col2ImGrad(gradient, input, image_shape, block_shape): the gradient of Col2Im's input, which is unfold of PyTorch."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.col2_im import BLOCK_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="Col2ImGrad",
    inputs=(
        required("gradient", FLOATS),
        required("input", FLOATS),
        required("image_shape", INT64),
        required("block_shape", INT64),
    ),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    attributes=BLOCK_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=moved,
)
