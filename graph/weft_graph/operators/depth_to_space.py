"""DepthToSpace: channels laid out as blocks of height and width; with CRD it is PixelShuffle of Shi et al. 2016."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import is_unknown, product, quotient, unknown_of
from weft_graph.formals import ANY, required
from weft_graph.ir import AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType

MODES = ("DCR", "CRD")

BLOCK_ATTRIBUTES = {"blocksize": Attribute(int, required=True), "mode": Attribute(str, default="DCR")}


def infer_block(context: InferContext) -> int:
    """The block's side. Raises ShapeError where it, the mode or the input's rank is wrong."""
    data, side = context.input(0), as_int(context.attribute("blocksize"))
    if data.rank != 4 or side < 1:
        raise context.shape_error(
            f"the input must be (batch, channels, h, w) and blocksize {side} at least 1, got {data}"
        )
    if context.attribute("mode") not in MODES:
        raise context.shape_error(f"mode {context.attribute('mode')!r} is none of {', '.join(MODES)}")
    return side


def reverse_gradient(context: GradientContext, op_type: str) -> str:
    """The gradient laid out the other way: nothing is added up."""
    attributes: dict[str, AttributeValue] = {
        "blocksize": as_int(context.attribute("blocksize")),
        "mode": str(context.attribute("mode")),
    }
    return apply(context, op_type, incoming(context), **attributes)


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, side = context.input(0), infer_block(context)
    batch, channels, high, wide = data.shape
    depth = quotient((channels,), (side * side,))
    if depth is None and is_unknown(channels):
        depth = unknown_of("over", channels, side * side)
    if depth is None:
        raise context.shape_error(
            f"{channels} channels do not fall into blocks of {side} x {side}; the input is {data}"
        )
    return (TensorType(data.dtype, (batch, depth, product((high, side)), product((wide, side)))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (reverse_gradient(context, "SpaceToDepth"),)


SCHEMA = OpSchema(
    op_type="DepthToSpace",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes=BLOCK_ATTRIBUTES,
    flops=moved,
)
