"""GridSample: the input (batch, channels, spatial ...) at the places of a grid, in coordinates from -1 to 1.

The grid is (batch, places ..., dimensions), the last dimension's coordinate first. Jaderberg et al. 2015.
"""

from __future__ import annotations

from weft_graph.dimensions.dims import agree, settled
from weft_graph.formals import BOOLEANS, FLOATS, NUMBERS, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema, Setting
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.spatial_flops import sampled
from weft_graph.types import TensorType

SAMPLE_ATTRIBUTES = {
    "align_corners": Attribute(int, default=0),
    "mode": Attribute(str, default="linear"),
    "padding_mode": Attribute(str, default="zeros"),
}
_CHOICES = {
    "mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, grid = context.input(0), context.input(1)
    for name, choices in _CHOICES.items():
        if context.attribute(name) not in choices:
            raise context.shape_error(f"{name} {context.attribute(name)!r} is none of {', '.join(choices)}")
    if data.rank < 3 or grid.rank != data.rank or not agree(grid.shape[-1], data.rank - 2):
        raise context.shape_error(
            f"X must be (batch, channels, spatial ...) and grid (batch, places ..., dimensions), got {data} and {grid}"
        )
    if not agree(data.shape[0], grid.shape[0]):
        raise context.shape_error(f"X {data} and grid {grid} have different batches")
    batch = settled(data.shape[0], grid.shape[0])
    return (TensorType(data.dtype, (batch, data.shape[1], *grid.shape[1:-1])),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, SAMPLE_ATTRIBUTES)
    inputs = (incoming(context), context.input(0), context.input(1))
    wanted = 2 if context.needs(1) else 1
    gradients = context.emit("GridSampleGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=wanted)
    return gradients[0], gradients[1] if wanted == 2 else None


SCHEMA = OpSchema(
    op_type="GridSample",
    inputs=(required("X", NUMBERS | BOOLEANS), setting(required("grid", FLOATS), Setting.GIVEN)),
    outputs=(required("Y", NUMBERS | BOOLEANS),),
    infer=_infer,
    gradient=_gradient,
    attributes=SAMPLE_ATTRIBUTES,
    flops=sampled,
)
