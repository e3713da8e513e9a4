"""Pad: elements before and after dimensions: a constant, the edge, a reflection or the other end.

Negative pads take elements away. Before opset 11 `pads` and `value` are attributes.
"""

from __future__ import annotations

from weft_graph.attributes import as_str
from weft_graph.dimensions.dims import agree, product
from weft_graph.formals import ANY, INDICES, INT64, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import apply, given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.lists import infer_amounts, infer_required_amounts
from weft_graph.shapes.padding import MODES, open_padded, open_sides_of
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, value = context.input(0), context.optional_input(2)
    mode = as_str(context.attribute("mode"))
    if mode not in MODES:
        raise context.shape_error(f"mode {mode!r} is none of {', '.join(MODES)}")
    if value is not None:
        check_same_dtype(context, 0, 2)
        if not agree(product(value.shape), 1):
            raise context.shape_error(f"constant_value {value} must be one number")
    pads, axes = infer_required_amounts(context, 1, "pads"), infer_amounts(context, 3, "axes")
    try:
        shape = open_padded(data.shape, open_sides_of(data.rank, pads, axes), mode, context.unknown)
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(data.dtype, shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    inputs = (gradient, context.input(0), context.input(1), context.input(3))
    (data,) = context.emit("PadGrad", inputs, given_attributes(context, ("mode", "pads")), domain=WEFT_DOMAIN)
    gradients: list[str | None] = [data, *(None,) * (len(context.node.inputs) - 1)]
    if context.needs(2) and context.attribute("mode") == "constant":
        # What does not reach the data reaches the constant.
        whole, inner = (apply(context, "ReduceSum", value, keepdims=0) for value in (gradient, data))
        outer = apply(context, "Sub", whole, inner)
        (gradients[2],) = context.emit("ReshapeLike", (outer, context.input(2)), domain=WEFT_DOMAIN)
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="Pad",
    inputs=(
        required("data", ANY),
        optional("pads", INT64),
        setting(optional("constant_value", ANY)),
        optional("axes", INDICES),
    ),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "mode": Attribute(str, default="constant"),
        "pads": Attribute(tuple),
        "value": Attribute(float, default=0.0),
    },
    flops=moved,
)
