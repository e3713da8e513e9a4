"""Y = X * P(a standard normal number is below X); `approximate` "tanh" takes a tanh for P."""

from __future__ import annotations

from weft_graph.attributes import as_str
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    approximate = as_str(context.attribute("approximate"))
    if approximate not in {"none", "tanh"}:
        raise context.shape_error(f"approximate {approximate!r} is none of none, tanh")
    return (context.input(0),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit(
        "GeluGrad",
        (incoming(context), context.input(0)),
        given_attributes(context, ("approximate",)),
        domain=WEFT_DOMAIN,
    )


SCHEMA = OpSchema(
    op_type="Gelu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"approximate": Attribute(str, default="none")},
    pointwise=True,
)
