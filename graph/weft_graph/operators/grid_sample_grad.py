"""GridSampleGrad(gradient, X, grid): the gradients of X and of the grid; GridSample's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.grid_sample import SAMPLE_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import sampled_gradient
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(1), context.input(2)


SCHEMA = OpSchema(
    op_type="GridSampleGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("grid", FLOATS)),
    outputs=(required("X_gradient", FLOATS), optional("grid_gradient", FLOATS)),
    infer=_infer,
    attributes=SAMPLE_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    work=sampled_gradient,
)
