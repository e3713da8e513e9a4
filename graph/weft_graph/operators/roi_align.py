"""RoiAlign: boxes of an input, each cut into bins, each bin the mean or the largest of points read between elements.

X is (batch, channels, h, w), a box (x1, y1, x2, y2) in the image that X is `spatial_scale` times as large as.
He et al. 2017. Boxes have no gradient.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree, settled
from weft_graph.formals import FLOATS, INT64, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.spatial_flops import boxes
from weft_graph.types import TensorType

ALIGN_ATTRIBUTES = {
    "coordinate_transformation_mode": Attribute(str, default="half_pixel"),
    "mode": Attribute(str, default="avg"),
    "output_height": Attribute(int, default=1),
    "output_width": Attribute(int, default=1),
    "sampling_ratio": Attribute(int, default=0),
    "spatial_scale": Attribute(float, default=1.0),
}
_CHOICES = {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel"), "mode": ("avg", "max")}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, rois, images = context.input(0), context.input(1), context.input(2)
    for name, choices in _CHOICES.items():
        if context.attribute(name) not in choices:
            raise context.shape_error(f"{name} {context.attribute(name)!r} is none of {', '.join(choices)}")
    if data.rank != 4 or rois.rank != 2 or images.rank != 1 or not agree(rois.shape[1], 4):
        raise context.shape_error(
            f"X must be (batch, channels, h, w), rois (n, 4) and batch_indices (n), got {data}, {rois} and {images}"
        )
    if not agree(rois.shape[0], images.shape[0]):
        raise context.shape_error(f"rois {rois} and batch_indices {images} differ in number")
    high, wide = as_int(context.attribute("output_height")), as_int(context.attribute("output_width"))
    if min(high, wide) < 1 or as_int(context.attribute("sampling_ratio")) < 0:
        raise context.shape_error("output_height and output_width must be at least 1, sampling_ratio at least 0")
    return (TensorType(data.dtype, (settled(rois.shape[0], images.shape[0]), data.shape[1], high, wide)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    (data,) = context.emit("RoiAlignGrad", inputs, given_attributes(context, ALIGN_ATTRIBUTES), domain=WEFT_DOMAIN)
    return data, None, None


SCHEMA = OpSchema(
    op_type="RoiAlign",
    inputs=(required("X", FLOATS), setting(required("rois", FLOATS)), required("batch_indices", INT64)),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=ALIGN_ATTRIBUTES,
    flops=boxes,
)
