"""LRN: each element over a power of the mean square of `size` channels around it. Krizhevsky et al. 2012."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, size = context.input(0), as_int(context.attribute("size"))
    if data.rank < 2 or size < 1:
        raise context.shape_error(f"the input must be (batch, channels, ...) and size {size} at least 1, got {data}")
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("alpha", "beta", "bias", "size"))
    return context.emit("LRNGrad", (incoming(context), context.input(0)), attributes, domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="LRN",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "alpha": Attribute(float, default=1e-4),
        "beta": Attribute(float, default=0.75),
        "bias": Attribute(float, default=1.0),
        "size": Attribute(int, required=True),
    },
    flops=normalized,
)
