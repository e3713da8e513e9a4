"""AffineGridGrad(gradient, theta, size): the gradient of theta; AffineGrid's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.affine_grid import GRID_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import reduced
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="AffineGridGrad",
    inputs=(required("gradient", FLOATS), required("theta", FLOATS), required("size", INT64)),
    outputs=(required("theta_gradient", FLOATS),),
    infer=_infer,
    attributes=GRID_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=reduced,
)
