"""Compress: the elements, or the slices along `axis`, whose condition is true; those behind its end are left out."""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import product
from weft_graph.formals import ANY, BOOLEANS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming
from weft_graph.types import Shape, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, condition = context.input(0), context.input(1)
    before: Shape
    after: Shape
    if condition.rank != 1:
        raise context.shape_error(f"the condition must be a list, got {condition}")
    if context.attribute("axis") is None:
        whole, before, after = product(data.shape), (), ()
    else:
        axis = infer_axis(context, data.rank)
        whole, before, after = data.shape[axis], data.shape[:axis], data.shape[axis + 1 :]
    length = condition.shape[0]
    if isinstance(length, int) and isinstance(whole, int) and length > whole:
        raise context.shape_error(f"the condition {condition} is longer than the {whole} that {data} has")
    return (TensorType(data.dtype, (*before, context.unknown(whole), *after)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, data = incoming(context), context.input(0)
    places = apply(context, "NonZero", context.input(1))
    chosen = apply(context, "Squeeze", places, context.constant(np.zeros(1, dtype=np.int64)))
    axis = context.attribute("axis")
    if axis is not None:
        attributes = {"axis": as_int(axis), "wraps": 0}
        return context.emit("GatherGrad", (gradient, data, chosen), attributes, domain=WEFT_DOMAIN)[0], None
    flat = apply(context, "Reshape", data, context.constant(np.array([-1], dtype=np.int64)))
    (part,) = context.emit("GatherGrad", (gradient, flat, chosen), {"axis": 0, "wraps": 0}, domain=WEFT_DOMAIN)
    return context.emit("ReshapeLike", (part, data), domain=WEFT_DOMAIN)[0], None


SCHEMA = OpSchema(
    op_type="Compress",
    inputs=(required("input", ANY), required("condition", BOOLEANS)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int)},
)
