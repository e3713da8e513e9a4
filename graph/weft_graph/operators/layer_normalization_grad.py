"""LayerNormalizationGrad(gradient, X, Scale, Mean, InvStdDev): the gradients of X and Scale.

Statistics that were given in less than float32 are computed again, with `epsilon`.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(1), context.input(2)


SCHEMA = OpSchema(
    op_type="LayerNormalizationGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("Scale", FLOATS),
        required("Mean", FLOATS),
        required("InvStdDev", FLOATS),
    ),
    outputs=(required("X_gradient", FLOATS), required("Scale_gradient", FLOATS)),
    infer=_infer,
    attributes={"axis": Attribute(int, default=-1), "epsilon": Attribute(float, default=1e-5)},
    domain=WEFT_DOMAIN,
    in_place=(1,),
)
