"""MaxUnpool: each element where MaxPool found it, and zeros elsewhere."""

from __future__ import annotations

from weft_graph.dimensions.dims import agree
from weft_graph.formals import FLOATS, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.unpooling import unpooled
from weft_graph.types import TensorType

UNPOOL_ATTRIBUTES = {
    "kernel_shape": Attribute(tuple, required=True),
    "pads": Attribute(tuple),
    "strides": Attribute(tuple),
}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, indices = context.input(0), context.input(1)
    if data.rank < 3 or data.rank != indices.rank:
        raise context.shape_error(f"X and I must be (batch, channels, spatial ...) of one shape, got {data}, {indices}")
    if not all(agree(a, b) for a, b in zip(data.shape, indices.shape, strict=True)):
        raise context.shape_error(f"X {data} and I {indices} differ in shape")
    sizes = tuple(dim for dim in data.shape[2:] if isinstance(dim, int))
    shape = None
    if len(sizes) == data.rank - 2:
        try:
            shape = (*data.shape[:2], *unpooled(sizes, context.attribute))
        except ValueError as error:
            raise context.shape_error(f"{error}; the input is {data}") from None
    if context.optional_input(2) is not None:
        asked = context.dims(2)
        if asked is None or len(asked) != data.rank:
            raise context.shape_error(f"output_shape {context.input(2)} must have {data.rank} numbers")
        for given, natural in zip(asked, shape or asked, strict=True):
            if isinstance(given, int) and isinstance(natural, int) and given < natural:
                raise context.shape_error(f"output_shape {list(asked)} is smaller than the windows': {shape}")
        return (TensorType(data.dtype, tuple(asked)),)
    if shape is None:
        raise context.shape_error(f"spatial dimensions must be numbers, got {data}")
    return (TensorType(data.dtype, shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(1))
    attributes = given_attributes(context, UNPOOL_ATTRIBUTES)
    (data,) = context.emit("MaxUnpoolGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


SCHEMA = OpSchema(
    op_type="MaxUnpool",
    inputs=(required("X", FLOATS), required("I", INT64), optional("output_shape", INT64)),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=UNPOOL_ATTRIBUTES,
    flops=moved,
)
