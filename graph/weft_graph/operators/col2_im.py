"""Col2Im: blocks (batch, channels * places of a block, blocks) added up where they lie in an image; fold of PyTorch."""

from __future__ import annotations

import math

from weft_graph.dimensions.dims import agree, product, quotient
from weft_graph.formals import INT64, NUMBERS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.blocks import blocks_of
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType

BLOCK_ATTRIBUTES = {"dilations": Attribute(tuple), "pads": Attribute(tuple), "strides": Attribute(tuple)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, image, block = context.input(0), context.dims(1), context.dims(2)
    if data.rank != 3 or image is None or block is None or len(image) != len(block):
        raise context.shape_error(
            "the input must be (batch, channels * places, blocks), image_shape and block_shape as long lists, got "
            f"{data}, {context.input(1)}, {context.input(2)}"
        )
    sizes = tuple(dim for dim in image if isinstance(dim, int))
    kernel = tuple(dim for dim in block if isinstance(dim, int))
    if len(kernel) < len(block):
        return (TensorType(data.dtype, (data.shape[0], context.unknown(), *image)),)
    channels = quotient((data.shape[1],), kernel) if min(kernel, default=0) > 0 else None
    if channels is None:
        raise context.shape_error(f"{data.shape[1]} rows of {data} are not whole blocks of {kernel}")
    if len(sizes) == len(image):
        try:
            count = math.prod(blocks_of(sizes, kernel, context.attribute).count)
        except ValueError as error:
            raise context.shape_error(f"{error}; the input is {data}") from None
        if not agree(data.shape[2], product((count,))):
            raise context.shape_error(f"{data} has {data.shape[2]} blocks, and an image of {sizes} has {count}")
    return (TensorType(data.dtype, (data.shape[0], channels, *image)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1), context.input(2))
    attributes = given_attributes(context, BLOCK_ATTRIBUTES)
    (data,) = context.emit("Col2ImGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return data, None, None


SCHEMA = OpSchema(
    op_type="Col2Im",
    inputs=(required("input", NUMBERS), required("image_shape", INT64), required("block_shape", INT64)),
    outputs=(required("output", NUMBERS),),
    infer=_infer,
    gradient=_gradient,
    attributes=BLOCK_ATTRIBUTES,
    flops=reduced,
)
