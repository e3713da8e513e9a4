"""MaxPoolGrad(gradient, input, output): each window's gradient at its first largest element; MaxPool's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.spatial_flops import windowed_gradient
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="MaxPoolGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS), required("output", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    attributes={**WINDOW_ATTRIBUTES, "ceil_mode": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
    flops=windowed_gradient,
)
