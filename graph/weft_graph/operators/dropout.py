"""Dropout: in training an element is 0 with probability `ratio`, else scaled by 1 / (1 - ratio).

Without `training_mode`, or where it is false, the output is the input.
"""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, FLOATS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flow import incoming
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    for index, name in ((1, "ratio"), (2, "training_mode")):
        given = context.optional_input(index)
        if given is not None and given.shape != ():
            raise context.shape_error(f"{name} must be a scalar, got {given}")
    ratio = context.constant(1) if context.optional_input(1) is not None else None
    if ratio is not None and not 0 <= float(ratio) < 1:
        raise context.shape_error(f"ratio {float(ratio)} is outside [0, 1)")
    return data, TensorType(DType.BOOL, data.shape)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), context.node.inputs
    if len(inputs) < 3 or not inputs[2]:
        return (gradient, None, None)[: len(inputs)]  # without training_mode it is the identity
    (data,) = context.emit("DropoutGrad", (gradient, context.output(1), *inputs[1:]), domain=WEFT_DOMAIN)
    return data, None, None


SCHEMA = OpSchema(
    op_type="Dropout",
    inputs=(required("data", FLOATS), setting(optional("ratio", FLOATS)), optional("training_mode", BOOLEANS)),
    outputs=(required("output", FLOATS), optional("mask", BOOLEANS)),
    infer=_infer,
    gradient=_gradient,
    attributes={"seed": Attribute(int)},
    random=True,
)
