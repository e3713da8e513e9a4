"""Expand: the input, broadcast together with `shape`."""

from __future__ import annotations

from weft_graph.formals import ANY, INT64, required
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import broadcast, sum_to
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.lists import infer_shape
from weft_graph.shapes.viewing import repeated
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, target = context.input(0), infer_shape(context, 1, "shape")
    shape = broadcast(data.shape, target)
    if shape is None:
        raise context.shape_error(f"{data} does not broadcast with shape {list(target)}")
    return (TensorType(data.dtype, shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return sum_to(context, incoming(context), context.input(0)), None


SCHEMA = OpSchema(
    op_type="Expand",
    inputs=(required("input", ANY), required("shape", INT64)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    flops=moved,
    views=repeated,
)
