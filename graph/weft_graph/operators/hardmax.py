"""Hardmax: 1 at the first largest element along `axis`, 0 elsewhere."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import flat
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    infer_axis(context, context.input(0).rank)
    return (context.input(0),)


SCHEMA = OpSchema(
    op_type="Hardmax",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=flat,
    attributes={"axis": Attribute(int, default=-1)},
    flops=reduced,
)
