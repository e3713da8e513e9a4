"""MeanVarianceNormalization: the elements along `axes` less their mean, over their deviation and 1e-9.

What does not vary is 0. There is no scale, no shift and no epsilon to set.
"""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import all_normalised
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType

ATTRIBUTES = {"axes": Attribute(tuple, default=(0, 2, 3))}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    try:
        all_normalised(as_ints(context.attribute("axes")), data.rank)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {data}") from None
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0))
    attributes = given_attributes(context, ATTRIBUTES)
    return context.emit("MeanVarianceNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="MeanVarianceNormalization",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=ATTRIBUTES,
    flops=normalized,
)
