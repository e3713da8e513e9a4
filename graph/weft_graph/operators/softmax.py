"""Softmax: e^x over its sum along `axis`."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    infer_axis(context, context.input(0).rank)
    return (context.input(0),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = {"axis": as_int(context.attribute("axis"))}
    return context.emit("SoftmaxGrad", (incoming(context), context.output(0)), attributes, domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="Softmax",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=-1)},
    flops=normalized,
    in_place=(0,),
)
