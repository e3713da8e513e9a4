"""DetGrad(gradient, X): the gradient times the cofactors of X, which singular matrices have too."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="DetGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer,
    domain=WEFT_DOMAIN,
)
