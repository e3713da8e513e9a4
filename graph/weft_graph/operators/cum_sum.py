"""CumSum: the sum of all elements up to each one along `axis`; without itself, or from the end, as asked."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree, product
from weft_graph.formals import INDICES, SUMMABLE, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import normalised
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def infer_running(context: InferContext) -> tuple[TensorType, ...]:
    """Output like input 0, along the axis that input 1 is. Raises ShapeError where there is none such."""
    data, known = context.input(0), context.constant(1)
    if not agree(product(context.input(1).shape), 1):
        raise context.shape_error(f"axis {context.input(1)} must be one number")
    try:
        normalised(0 if known is None else int(known.reshape(-1)[0]), data.rank)
    except ValueError as error:
        raise context.shape_error(f"{error} of {data}") from None
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    backwards = 1 - as_int(context.attribute("reverse"))
    attributes = {"exclusive": as_int(context.attribute("exclusive")), "reverse": backwards}
    return context.emit("CumSum", (incoming(context), context.input(1)), attributes)[0], None


SCHEMA = OpSchema(
    op_type="CumSum",
    inputs=(required("x", SUMMABLE), required("axis", INDICES)),
    outputs=(required("y", SUMMABLE),),
    infer=infer_running,
    gradient=_gradient,
    attributes={"exclusive": Attribute(int, default=0), "reverse": Attribute(int, default=0)},
    flops=reduced,
)
