"""RoiAlignGrad(gradient, X, rois, batch_indices): the gradient of X; RoiAlign's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.roi_align import ALIGN_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import boxes_gradient
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="RoiAlignGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("rois", FLOATS),
        required("batch_indices", INT64),
    ),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer,
    attributes=ALIGN_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    work=boxes_gradient,
)
