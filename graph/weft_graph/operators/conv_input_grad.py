"""ConvInputGrad(gradient, input, weights): the gradient of Conv's input; the attributes are Conv's."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.spatial_flops import convolution_gradient
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="ConvInputGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS), required("weights", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    attributes={**WINDOW_ATTRIBUTES, "group": Attribute(int, default=1)},
    domain=WEFT_DOMAIN,
    order=MemoryOrder.CHANNELS,
    flops=convolution_gradient,
    shape_only=(1,),
)
