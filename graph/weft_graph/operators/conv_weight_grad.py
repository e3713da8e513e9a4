"""ConvWeightGrad(gradient, input, weights): the gradient of Conv's weights; the attributes are Conv's."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.spatial_flops import convolution_gradient
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(2),)


SCHEMA = OpSchema(
    op_type="ConvWeightGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS), required("weights", FLOATS)),
    outputs=(required("weights_gradient", FLOATS),),
    infer=_infer,
    attributes={**WINDOW_ATTRIBUTES, "group": Attribute(int, default=1)},
    domain=WEFT_DOMAIN,
    flops=convolution_gradient,
    shape_only=(2,),
)
