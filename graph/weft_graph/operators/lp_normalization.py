"""LpNormalization: the input over its norm along `axis`, the sum of absolute values or, for `p` 2, the root of squares.

Where the norm is 0, output and gradient are 0.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, required
from weft_graph.ir import AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    infer_axis(context, context.input(0).rank)
    if context.attribute("p") not in {1, 2}:
        raise context.shape_error(f"p is {context.attribute('p')}, which is none of 1, 2")
    return (context.input(0),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    x, output = context.input(0), context.output(0)
    along: dict[str, AttributeValue] = {"axes": (as_int(context.attribute("axis")),), "keepdims": 1}
    by_square = context.attribute("p") == 2
    norm = apply(context, "ReduceL2" if by_square else "ReduceL1", x, **along)
    is_zero = apply(context, "Equal", norm, scalar(context, 0, norm))
    share = apply(context, "Div", incoming(context), apply(context, "Where", is_zero, scalar(context, 1, norm), norm))
    projected = apply(context, "ReduceSum", apply(context, "Mul", share, output), **along)
    # The norm's slope is the output itself for p 2, and the sign for p 1.
    slope = output if by_square else apply(context, "Sign", x)
    rest = apply(context, "Sub", share, apply(context, "Mul", slope, projected))
    return (apply(context, "Where", is_zero, scalar(context, 0, norm), rest),)


SCHEMA = OpSchema(
    op_type="LpNormalization",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=-1), "p": Attribute(int, default=2)},
    flops=normalized,
)
