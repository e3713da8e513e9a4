"""BatchNormalizationGrad(gradient, X, scale, input_mean, input_var): gradients of X, scale, B and both statistics.

Those of the statistics are there outside training only, where the output depends on them.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.flops import normalized
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    scale = context.input(2)
    return context.input(1), scale, scale, context.input(3), context.input(4)


SCHEMA = OpSchema(
    op_type="BatchNormalizationGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("scale", FLOATS),
        required("input_mean", FLOATS),
        required("input_var", FLOATS),
    ),
    outputs=(
        required("X_gradient", FLOATS),
        required("scale_gradient", FLOATS),
        required("B_gradient", FLOATS),
        optional("mean_gradient", FLOATS),
        optional("var_gradient", FLOATS),
    ),
    infer=_infer,
    attributes={"epsilon": Attribute(float, default=1e-5), "training_mode": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
    in_place=(1,),
    order=MemoryOrder.INPUT,
    flops=normalized,
)
