"""AveragePoolGrad(gradient, input): each window's gradient, shared among its elements; AveragePool's attributes."""

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
    op_type="AveragePoolGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    attributes={
        **WINDOW_ATTRIBUTES,
        "ceil_mode": Attribute(int, default=0),
        "count_include_pad": Attribute(int, default=0),
    },
    domain=WEFT_DOMAIN,
    flops=windowed_gradient,
    shape_only=(1,),
)
