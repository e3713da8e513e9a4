"""MaxRoiPool: boxes of an input, each cut into bins of whole elements, the largest of each bin. Girshick 2015.

A box is (image, x1, y1, x2, y2), both ends included once scaled and rounded. An empty bin is 0. Boxes have no gradient.
"""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.dimensions.dims import agree
from weft_graph.formals import FLOATS, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.spatial_flops import boxes
from weft_graph.types import TensorType

ROI_ATTRIBUTES = {"pooled_shape": Attribute(tuple, required=True), "spatial_scale": Attribute(float, default=1.0)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, rois, pooled = context.input(0), context.input(1), as_ints(context.attribute("pooled_shape"))
    check_same_dtype(context, 0, 1)
    if data.rank != 4 or rois.rank != 2 or not agree(rois.shape[1], 5):
        raise context.shape_error(f"X must be (batch, channels, h, w) and rois (n, 5), got {data} and {rois}")
    if len(pooled) != 2 or min(pooled) < 1:
        raise context.shape_error(f"pooled_shape {pooled} must be two numbers, each at least 1")
    return (TensorType(data.dtype, (rois.shape[0], data.shape[1], *pooled)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    (data,) = context.emit("MaxRoiPoolGrad", inputs, given_attributes(context, ROI_ATTRIBUTES), domain=WEFT_DOMAIN)
    return data, None


SCHEMA = OpSchema(
    op_type="MaxRoiPool",
    inputs=(required("X", FLOATS), setting(required("rois", FLOATS))),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=ROI_ATTRIBUTES,
    flops=boxes,
)
