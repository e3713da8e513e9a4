"""GroupNormalizationGrad(gradient, X, scale): the gradients of X, scale and bias; `num_groups` 0 is one a channel."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(1), context.input(2), context.input(2)


SCHEMA = OpSchema(
    op_type="GroupNormalizationGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("scale", FLOATS)),
    outputs=(required("X_gradient", FLOATS), required("scale_gradient", FLOATS), required("bias_gradient", FLOATS)),
    infer=_infer,
    attributes={"epsilon": Attribute(float, default=1e-5), "num_groups": Attribute(int, required=True)},
    domain=WEFT_DOMAIN,
)
