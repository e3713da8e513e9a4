"""MaxRoiPoolGrad(gradient, X, rois): the gradient of X, at the first of each bin's largest; MaxRoiPool's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.max_roi_pool import ROI_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import boxes_gradient
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="MaxRoiPoolGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("rois", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer,
    attributes=ROI_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    work=boxes_gradient,
)
